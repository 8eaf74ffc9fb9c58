#include "loadtest/html.h"

#include <cstdint>
#include <optional>

#include "absl/strings/str_format.h"

namespace millrace {
namespace {

struct Decoded {
  uint32_t code;
  size_t size;
};

// Decodes the character at the start, nullopt if the bytes are no UTF-8.
std::optional<Decoded> Decode(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return Decoded{first, 1};
  const size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < size) return std::nullopt;
  uint32_t code = first & (0x7f >> size);
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return std::nullopt;
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[size] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
    return std::nullopt;
  }
  return Decoded{code, size};
}

bool IsForbidden(uint32_t code) {
  return (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7f && code < 0xa0) ||
         (code & 0xfffe) == 0xfffe || (code >= 0xfdd0 && code <= 0xfdef);
}

bool ChangesDirection(uint32_t code) {
  return code == 0x061c || code == 0x200e || code == 0x200f || (code >= 0x202a && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069);
}

}  // namespace

std::string EscapeHtml(std::string_view text) {
  std::string escaped;
  while (!text.empty()) {
    const std::optional<Decoded> decoded = Decode(text);
    const size_t size = decoded ? decoded->size : 1;
    if (!decoded || IsForbidden(decoded->code)) {
      escaped += "\xef\xbf\xbd";
    } else if (ChangesDirection(decoded->code)) {
      escaped += absl::StrFormat("[U+%04X]", decoded->code);
    } else if (decoded->code == '&') {
      escaped += "&amp;";
    } else if (decoded->code == '<') {
      escaped += "&lt;";
    } else if (decoded->code == '>') {
      escaped += "&gt;";
    } else if (decoded->code == '"') {
      escaped += "&quot;";
    } else if (decoded->code == '\'') {
      escaped += "&#39;";
    } else {
      escaped += text.substr(0, size);
    }
    text.remove_prefix(size);
  }
  return escaped;
}

}  // namespace millrace
