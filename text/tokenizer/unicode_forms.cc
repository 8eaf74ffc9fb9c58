#include "text/tokenizer/unicode_forms.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "text/tokenizer/code_range.h"
#include "text/tokenizer/unicode_tables.h"
#include "text/utf8.h"

namespace millrace {
namespace {

constexpr size_t kLongestDecomposition = 18;  // of U+FDFA, in NFKD

template <size_t kSize>
bool Contains(const CodeRange (&ranges)[kSize], utf8proc_int32_t code) {
  return FindRange(ranges, static_cast<char32_t>(code)) != nullptr;
}

// Returns whether utf8proc has a mark for what tokenizers have a starter (UAX #15) for.
bool IsLateMark(utf8proc_int32_t code) {
  const utf8proc_category_t category = utf8proc_category(code);
  return (category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
          category == UTF8PROC_CATEGORY_ME) &&
         !Contains(kMarks, code);
}

utf8proc_propval_t CombiningClass(utf8proc_int32_t code) {
  const utf8proc_propval_t combining = utf8proc_get_property(code)->combining_class;
  return combining == 0 || IsLateMark(code) ? 0 : combining;
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

// Composes what can be composed. A late mark composes with nothing and ends what stands before it.
void Compose(utf8proc_option_t options, std::vector<utf8proc_int32_t>* codes) {
  auto out = codes->begin();
  for (auto begin = codes->begin(); begin != codes->end();) {
    auto end = begin + 1;
    if (!IsLateMark(*begin)) end = std::find_if(end, codes->end(), IsLateMark);
    utf8proc_ssize_t count = utf8proc_normalize_utf32(&*begin, end - begin, options);
    if (count < 0) count = end - begin;
    out = std::copy_n(begin, count, out);
    begin = end;
  }
  codes->erase(out, codes->end());
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
        FindRange(kLateDecompositions, character.code) != nullptr
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
  if (compose) Compose(options, &codes);
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
      const auto code = static_cast<utf8proc_int32_t>(character.code);
      const CaseRange* late = FindRange(kLateCapitals, character.code);
      AppendCharacter(static_cast<char32_t>(late ? code + late->distance : utf8proc_tolower(code)),
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

bool IsMark(char32_t code) { return FindRange(kMarks, code) != nullptr; }

bool IsNonspacingMark(char32_t code) { return FindRange(kNonspacingMarks, code) != nullptr; }

bool IsControlFormatOrPrivate(char32_t code) { return FindRange(kRemovedByBert, code) != nullptr; }

int ScriptOf(char32_t code) {
  const ScriptRange* found = FindRange(kScripts, code);
  return found == nullptr ? 0 : found->script;
}

}  // namespace millrace
