#include "text/jinja/text.h"

#include <string.h>  // memmem
#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace millrace::jinja {
namespace {

// Maps every code point of `text` with `map(code_point)`.
template <typename Map>
std::string MapCodePoints(std::string_view text, Map map) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const CodePoint next = NextCodePoint(text);
    if (next.value < 0) {
      result.append(text.substr(0, next.size));
    } else {
      AppendCodePoint(map(next.value), result);
    }
    text.remove_prefix(next.size);
  }
  return result;
}

bool IsCased(int32_t code_point) {
  const utf8proc_category_t category = utf8proc_category(code_point);
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
         category == UTF8PROC_CATEGORY_LT;
}

bool IsPrintable(int32_t code_point) {
  if (code_point == ' ') return true;
  switch (utf8proc_category(code_point)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool IsLineBoundary(int32_t code_point) {
  return (code_point >= '\n' && code_point <= '\r') || (code_point >= 0x1C && code_point <= 0x1E) ||
         code_point == 0x85 || code_point == 0x2028 || code_point == 0x2029;
}

// Strips code points for which `strip` holds.
template <typename Predicate>
std::string_view StripIf(std::string_view text, Side side, Predicate strip) {
  if (side != Side::kRight) {
    while (!text.empty()) {
      const CodePoint next = NextCodePoint(text);
      if (!strip(text.substr(0, next.size), next.value)) break;
      text.remove_prefix(next.size);
    }
  }
  if (side == Side::kLeft) return text;
  while (!text.empty()) {
    size_t begin = text.size() - 1;
    while (begin > 0 && text.size() - begin < 4 && (text[begin] & 0xC0) == 0x80) --begin;
    CodePoint last = NextCodePoint(text.substr(begin));
    if (begin + last.size != text.size()) {  // Not one whole code point: the last byte is invalid.
      begin = text.size() - 1;
      last = {-1, 1};
    }
    if (!strip(text.substr(begin), last.value)) break;
    text.remove_suffix(last.size);
  }
  return text;
}

}  // namespace

CodePoint NextCodePoint(std::string_view text) {
  const unsigned char lead = static_cast<unsigned char>(text.front());
  if (lead < 0x80) return {lead, 1};
  utf8proc_int32_t value;
  const utf8proc_ssize_t size =
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                       static_cast<utf8proc_ssize_t>(text.size()), &value);
  if (size <= 0) return {-1, 1};
  return {value, static_cast<size_t>(size)};
}

bool IsSpace(int32_t c) {
  return (c >= '\t' && c <= '\r') || (c >= 0x1C && c <= ' ') || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

void AppendCodePoint(int32_t code_point, std::string& text) {
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t size = utf8proc_encode_char(code_point, bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
}

size_t CountCodePoints(std::string_view text) {
  size_t count = 0;
  for (; !text.empty(); ++count) text.remove_prefix(NextCodePoint(text).size);
  return count;
}

std::string_view CodePointRange(std::string_view text, size_t begin, size_t end) {
  size_t offset = 0;
  size_t position = 0;
  for (; position < begin; ++position) offset += NextCodePoint(text.substr(offset)).size;
  const size_t first = offset;
  for (; position < end; ++position) offset += NextCodePoint(text.substr(offset)).size;
  return text.substr(first, offset - first);
}

size_t FindText(std::string_view text, std::string_view needle) {
  if (needle.empty()) return 0;
  const void* found = memmem(text.data(), text.size(), needle.data(), needle.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

std::string_view StripSpace(std::string_view text, Side side) {
  return StripIf(text, side, [](std::string_view, int32_t value) { return IsSpace(value); });
}

std::string_view StripAny(std::string_view text, std::string_view characters, Side side) {
  return StripIf(text, side, [characters](std::string_view bytes, int32_t) {
    return characters.find(bytes) != std::string_view::npos;
  });
}

std::vector<std::string_view> Split(std::string_view text, std::string_view separator,
                                    int64_t max_splits) {
  std::vector<std::string_view> parts;
  for (; max_splits != 0; --max_splits) {
    const size_t at = FindText(text, separator);
    if (at == std::string_view::npos) break;
    parts.push_back(text.substr(0, at));
    text.remove_prefix(at + separator.size());
  }
  parts.push_back(text);
  return parts;
}

std::vector<std::string_view> SplitRight(std::string_view text, std::string_view separator,
                                         int64_t max_splits) {
  // A split of the mirror image from the left, so that it takes linear time too.
  const std::string mirrored(text.rbegin(), text.rend());
  std::vector<std::string_view> parts =
      Split(mirrored, std::string(separator.rbegin(), separator.rend()), max_splits);
  for (std::string_view& part : parts) {
    const size_t end = text.size() - static_cast<size_t>(part.data() - mirrored.data());
    part = text.substr(end - part.size(), part.size());
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> SplitSpace(std::string_view text, int64_t max_splits) {
  std::vector<std::string_view> parts;
  for (text = StripSpace(text, Side::kLeft); !text.empty() && max_splits != 0; --max_splits) {
    size_t end = 0;
    while (end < text.size()) {
      const CodePoint next = NextCodePoint(text.substr(end));
      if (IsSpace(next.value)) break;
      end += next.size;
    }
    parts.push_back(text.substr(0, end));
    text = StripSpace(text.substr(end), Side::kLeft);
  }
  if (!text.empty()) parts.push_back(text);
  return parts;
}

std::vector<std::string_view> SplitSpaceRight(std::string_view text, int64_t max_splits) {
  std::vector<std::string_view> parts;
  for (;;) {
    text = StripSpace(text, Side::kRight);
    if (text.empty()) break;
    std::string_view before;
    if (max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits) {
      before = StripIf(text, Side::kRight,
                       [](std::string_view, int32_t value) { return !IsSpace(value); });
    }
    parts.push_back(text.substr(before.size()));
    text = before;
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> SplitLines(std::string_view text) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint next = NextCodePoint(text.substr(at));
    if (!IsLineBoundary(next.value)) {
      at += next.size;
      continue;
    }
    lines.push_back(text.substr(begin, at - begin));
    at += text.substr(at, 2) == "\r\n" ? 2 : next.size;
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

bool IsAll(std::string_view text, CharClass of) {
  if (text.empty()) return false;
  while (!text.empty()) {
    const CodePoint next = NextCodePoint(text);
    const utf8proc_category_t category = utf8proc_category(next.value);
    const bool alpha = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
    const bool digit = category == UTF8PROC_CATEGORY_ND;
    const bool is = of == CharClass::kAlpha   ? alpha
                    : of == CharClass::kDigit ? digit
                    : of == CharClass::kAlnum ? alpha || digit
                                              : IsSpace(next.value);
    if (!is) return false;
    text.remove_prefix(next.size);
  }
  return true;
}

bool HasCase(std::string_view text, bool upper) {
  bool any = false;
  while (!text.empty()) {
    const CodePoint next = NextCodePoint(text);
    if (IsCased(next.value)) {
      if ((utf8proc_category(next.value) == UTF8PROC_CATEGORY_LU) != upper) return false;
      any = true;
    }
    text.remove_prefix(next.size);
  }
  return any;
}

std::string Upper(std::string_view text) {
  std::string result;
  for (;;) {
    const size_t at = text.find("\u00DF");
    result += MapCodePoints(text.substr(0, at), utf8proc_toupper);
    if (at == std::string_view::npos) return result;
    result += "SS";
    text.remove_prefix(at + 2);
  }
}

std::string Lower(std::string_view text) { return MapCodePoints(text, utf8proc_tolower); }

std::string Capitalize(std::string_view text) {
  bool first = true;
  return MapCodePoints(text, [&first](int32_t c) {
    return std::exchange(first, false) ? utf8proc_totitle(c) : utf8proc_tolower(c);
  });
}

std::string TitleLetters(std::string_view text) {
  bool after_letter = false;
  return MapCodePoints(text, [&after_letter](int32_t c) {
    return std::exchange(after_letter, IsCased(c)) ? utf8proc_tolower(c) : utf8proc_totitle(c);
  });
}

std::string TitleWords(std::string_view text) {
  bool begins = true;
  return MapCodePoints(text, [&begins](int32_t c) {
    const bool separates = IsSpace(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    return std::exchange(begins, separates) ? utf8proc_toupper(c) : utf8proc_tolower(c);
  });
}

std::string EscapeHtml(std::string_view text) {
  return absl::StrReplaceAll(
      absl::string_view(text.data(), text.size()),
      {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"'", "&#39;"}, {"\"", "&#34;"}});
}

std::string Repr(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string result(1, quote);
  while (!text.empty()) {
    const auto [c, size] = NextCodePoint(text);
    if (c == quote || c == '\\') {
      result += '\\';
      result += static_cast<char>(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      result += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (c < 0 || IsPrintable(c)) {
      result.append(text.substr(0, size));
    } else if (c < 0x100) {
      absl::StrAppendFormat(&result, "\\x%02x", c);
    } else if (c < 0x10000) {
      absl::StrAppendFormat(&result, "\\u%04x", c);
    } else {
      absl::StrAppendFormat(&result, "\\U%08x", c);
    }
    text.remove_prefix(size);
  }
  return result + quote;
}

std::string JsonString(std::string_view text, bool ascii) {
  std::string result = "\"";
  while (!text.empty()) {
    const auto [c, size] = NextCodePoint(text);
    static constexpr std::string_view kShort = "\"\\\n\r\t\b\f";
    static constexpr std::string_view kLetter = "\"\\nrtbf";
    const size_t index = c < 0x80 && c >= 0 ? kShort.find(static_cast<char>(c)) : kShort.npos;
    if (index != kShort.npos) {
      result += '\\';
      result += kLetter[index];
    } else if (c >= 0x10000 && ascii) {
      absl::StrAppendFormat(&result, "\\u%04x\\u%04x", 0xD800 + ((c - 0x10000) >> 10),
                            0xDC00 + ((c - 0x10000) & 0x3FF));
    } else if ((c >= 0 && c < 0x20) || (ascii && c >= 0x7F)) {
      absl::StrAppendFormat(&result, "\\u%04x", c);
    } else {
      result.append(text.substr(0, size));
    }
    text.remove_prefix(size);
  }
  return result + '"';
}

std::optional<int64_t> ParseInteger(std::string_view text, int base) {
  text = StripSpace(text, Side::kBoth);
  std::string digits;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    if (text[0] == '-') digits = "-";
    text.remove_prefix(1);
  }
  bool after_digit = false;  // An underscore may follow.
  if (text.size() > 1 && text[0] == '0') {
    for (const auto& [prefix, of_prefix] : {std::pair('b', 2), {'o', 8}, {'x', 16}}) {
      if ((text[1] | 0x20) != prefix || (base != 0 && base != of_prefix)) continue;
      base = of_prefix;
      after_digit = true;
      text.remove_prefix(2);
      break;
    }
  }
  if (base == 0) {
    // "012" could be meant as octal, and is refused.
    if (text.starts_with('0') && text.find_first_not_of("0_") != text.npos) return std::nullopt;
    base = 10;
  }
  for (const char c : text) {
    if (c == '_' && !after_digit) return std::nullopt;
    after_digit = c != '_';
    if (after_digit) digits += c;
  }
  if (!after_digit || text.empty()) return std::nullopt;
  int64_t number = 0;
  const char* const end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, number, base);
  return error == std::errc() && stop == end ? std::optional(number) : std::nullopt;
}

std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto shortest =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  const std::string_view scientific(buffer, static_cast<size_t>(shortest.ptr - buffer));
  int exponent = 0;
  const size_t at = scientific.find('e');
  const size_t sign = scientific[at + 1] == '+' ? 1 : 0;
  std::from_chars(scientific.data() + at + 1 + sign, scientific.data() + scientific.size(),
                  exponent);
  if (exponent < -4 || exponent >= 16) return std::string(scientific);
  const auto fixed =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::fixed);
  const std::string text(buffer, fixed.ptr);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

}  // namespace millrace::jinja
