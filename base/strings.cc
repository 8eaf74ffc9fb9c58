#include "base/strings.h"

namespace millrace {

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\v\f\r";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

std::vector<std::string_view> SplitList(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t end = text.find(separator);
    if (const std::string_view part = Trim(text.substr(0, end)); !part.empty()) {
      parts.push_back(part);
    }
    text = end == text.npos ? std::string_view() : text.substr(end + 1);
  }
  return parts;
}

}  // namespace millrace
