#include "text/tokenizer/added_tokens.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/status.h"
#include "formats/tokenizers/tokenizer_patterns.h"
#include "text/tokenizer/unicode_forms.h"
#include "text/utf8.h"

namespace millrace {
namespace {

// Returns where the character before `at` begins.
size_t CharacterBefore(std::string_view text, size_t at) {
  do {
    --at;
  } while (at > 0 && (text[at] & 0xc0) == 0x80);
  return at;
}

}  // namespace

absl::StatusOr<AddedTokens> AddedTokens::Create(std::vector<AddedTokenSpec> tokens) {
  AddedTokens added;
  added.tokens_ = std::move(tokens);
  std::vector<std::pair<std::string, Token>> texts;
  bool words = false;
  for (size_t i = 0; i < added.tokens_.size(); ++i) {
    texts.emplace_back(added.tokens_[i].content, static_cast<Token>(i));
    words = words || added.tokens_[i].single_word;
  }
  added.matcher_ = SpecialMatcher(std::move(texts));
  if (words) {
    MILLRACE_ASSIGN_OR_RETURN(added.word_, TextMatcher::Create({true, kWordCharacterPattern}));
  }
  return added;
}

bool AddedTokens::StandsInWord(std::string_view text, size_t begin, size_t end) const {
  const auto is_word = [&](std::string_view character) {
    bool found = false;
    return word_
               ->ForEach(character,
                         [&](TextMatcher::Match) {
                           found = true;
                           return absl::OkStatus();
                         })
               .ok() &&
           found;
  };
  if (begin > 0) {
    const size_t before = CharacterBefore(text, begin);
    if (is_word(text.substr(before, begin - before))) return true;
  }
  return end < text.size() && is_word(text.substr(end, FirstUtf8Unit(text.substr(end)).size));
}

absl::Status AddedTokens::Split(std::string_view text, bool parse_special,
                                absl::FunctionRef<absl::Status(Part)> emit) const {
  size_t given = 0;  // the end of the parts that were emitted
  size_t at = 0;     // the next place to search from
  size_t white = 0;  // the end of white space that was looked at: a token of white space has more
                     // of them in there
  while (const std::optional<SpecialMatcher::Match> match = matcher_.Find(text.substr(at))) {
    const AddedTokenSpec& token = tokens_[static_cast<size_t>(match->token)];
    size_t begin = at + match->begin;
    size_t end = begin + match->size;
    at = end;
    if (token.special && !parse_special) continue;
    if (token.single_word && StandsInWord(text, begin, end)) continue;
    while (token.lstrip && begin > given) {
      const size_t before = CharacterBefore(text, begin);
      if (!IsUnicodeSpace(FirstCharacter(text.substr(before)).code)) break;
      begin = before;
    }
    if (token.rstrip) {
      end = std::max(end, white);
      while (end < text.size()) {
        const Utf8Character next = FirstCharacter(text.substr(end));
        if (!IsUnicodeSpace(next.code)) break;
        end += next.size;
      }
      white = end;
    }
    // White space that the last one took along is there no more, and a token of it alone is none.
    if (token.lstrip) begin = std::max(begin, given);
    if (given < begin) MILLRACE_RETURN_IF_ERROR(emit({given, begin, std::nullopt}));
    if (begin < end) MILLRACE_RETURN_IF_ERROR(emit({begin, end, token.id}));
    given = end;
  }
  return given < text.size() ? emit({given, text.size(), std::nullopt}) : absl::OkStatus();
}

}  // namespace millrace
