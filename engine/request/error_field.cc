#include "engine/request/error_field.h"

namespace millrace {

std::string LeadingField(std::string_view message) {
  size_t end = message.find(' ');
  if (end == message.npos || end == 0) return "";
  const std::string_view rest = message.substr(end);
  if (message[end - 1] == ':') {
    --end;
  } else if (!rest.starts_with(" is ") && !rest.starts_with(" has ")) {
    return "";
  }
  for (char c : message.substr(0, end)) {
    const bool name = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '[' ||
                      c == ']' || c == '.';
    if (!name) return "";
  }
  return std::string(message.substr(0, end));
}

}  // namespace millrace
