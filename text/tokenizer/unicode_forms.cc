#include "text/tokenizer/unicode_forms.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "text/tokenizer/unicode_late.h"
#include "text/utf8.h"

namespace millrace {
namespace {

constexpr size_t kLongestDecomposition = 18;  // of U+FDFA, in NFKD

utf8proc_category_t Category(char32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

bool Contains(absl::Span<const CodeRange> ranges, char32_t code) {
  const auto it = std::lower_bound(
      ranges.begin(), ranges.end(), code,
      [](const CodeRange& range, char32_t wanted) { return range.second < wanted; });
  return it != ranges.end() && it->first <= code;
}

utf8proc_propval_t CombiningClass(utf8proc_int32_t code) {
  const utf8proc_propval_t combining = utf8proc_get_property(code)->combining_class;
  return combining == 0 || Contains(kLateMarks, static_cast<char32_t>(code)) ? 0 : combining;
}

// Puts the marks of each run into canonical order. utf8proc's own loop takes quadratic time.
void OrderMarks(std::vector<utf8proc_int32_t>* codes) {
  for (size_t begin = 0; begin < codes->size(); ++begin) {
    if (CombiningClass((*codes)[begin]) == 0) continue;
    size_t end = begin + 1;
    while (end < codes->size() && CombiningClass((*codes)[end]) != 0) ++end;
    std::stable_sort(codes->begin() + static_cast<ptrdiff_t>(begin),
                     codes->begin() + static_cast<ptrdiff_t>(end),
                     [](utf8proc_int32_t left, utf8proc_int32_t right) {
                       return CombiningClass(left) < CombiningClass(right);
                     });
    begin = end;
  }
}

}  // namespace

bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char byte) { return (byte & 0x80) == 0; });
}

std::string NormalizeUnicode(std::string_view text, bool compatibility, bool compose) {
  if (IsAscii(text)) return std::string(text);
  const auto options =
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | (compatibility ? UTF8PROC_COMPAT : 0) |
                                     (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE));
  std::vector<utf8proc_int32_t> codes;
  codes.reserve(text.size());
  while (!text.empty()) {
    const Utf8Character character = FirstCharacter(text);
    text.remove_prefix(character.size);
    utf8proc_int32_t parts[kLongestDecomposition];
    int boundary = 0;
    const utf8proc_ssize_t count =
        Contains(kLateDecompositions, character.code)
            ? 0
            : utf8proc_decompose_char(static_cast<utf8proc_int32_t>(character.code), parts,
                                      kLongestDecomposition, options, &boundary);
    if (count <= 0 || count > static_cast<utf8proc_ssize_t>(kLongestDecomposition)) {
      codes.push_back(static_cast<utf8proc_int32_t>(character.code));
    } else {
      codes.insert(codes.end(), parts, parts + count);
    }
  }
  OrderMarks(&codes);
  if (compose) {
    const utf8proc_ssize_t count = utf8proc_normalize_utf32(
        codes.data(), static_cast<utf8proc_ssize_t>(codes.size()), options);
    if (count >= 0) codes.resize(static_cast<size_t>(count));
  }
  std::string out;
  out.reserve(codes.size());
  for (const utf8proc_int32_t code : codes) AppendCharacter(static_cast<char32_t>(code), &out);
  return out;
}

std::string LowercaseUnicode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Character character = FirstCharacter(text);
    if (character.code < 0x80) {
      const bool upper = character.code >= 'A' && character.code <= 'Z';
      out.push_back(static_cast<char>(upper ? character.code + 32 : character.code));
    } else if (character.code == 0x130) {  // the one with two characters
      out += "i\xcc\x87";
    } else {
      AppendCharacter(
          static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(character.code))),
          &out);
    }
    text.remove_prefix(character.size);
  }
  return out;
}

bool IsUnicodeSpace(char32_t code) {
  return (code >= 0x09 && code <= 0x0d) || code == 0x20 || code == 0x85 || code == 0xa0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 ||
         code == 0x202f || code == 0x205f || code == 0x3000;
}

bool IsMark(char32_t code) {
  if (code == 0x1cf2 || code == 0x1cf3) return true;  // once Mc, now Lo
  const utf8proc_category_t category = Category(code);
  return (category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
          category == UTF8PROC_CATEGORY_ME) &&
         !Contains(kLateMarks, code);
}

bool IsNonspacingMark(char32_t code) {
  if (code == 0x1734) return true;  // now Mc
  return Category(code) == UTF8PROC_CATEGORY_MN && !Contains(kLateNonspacingMarks, code);
}

bool IsControlFormatOrPrivate(char32_t code) {
  const utf8proc_category_t category = Category(code);
  const bool late = code == 0x890 || code == 0x891 || code == 0x8e2 || code == 0x110cd ||
                    (code >= 0x13430 && code <= 0x13438);
  return category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CO ||
         (category == UTF8PROC_CATEGORY_CF && !late);
}

}  // namespace millrace
