#include "base/percent.h"

#include <algorithm>
#include <charconv>

namespace millrace {

std::string PercentDecoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    const char* digits = text.data() + i + 1;
    const char* end = text.data() + std::min(i + 3, text.size());
    if (std::from_chars(digits, end, value, 16).ptr != digits + 2) return std::string(text);
    out += static_cast<char>(value);
    i += 2;
  }
  return out;
}

}  // namespace millrace
