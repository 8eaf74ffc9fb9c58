// Finds the text of special tokens in a prompt.
#ifndef MILLRACE_TEXT_TOKENIZER_SPECIAL_MATCHER_H_
#define MILLRACE_TEXT_TOKENIZER_SPECIAL_MATCHER_H_

#include <bitset>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/token.h"

namespace millrace {

// Finds the leftmost match, and the longest one that begins there, as Hugging Face's tokenizers
// do.
class SpecialMatcher {
 public:
  struct Match {
    size_t begin;
    size_t size;
    Token token;
  };

  SpecialMatcher() = default;
  // Empty texts match nothing.
  explicit SpecialMatcher(std::vector<std::pair<std::string, Token>> tokens);

  std::optional<Match> Find(std::string_view text) const;

 private:
  std::vector<std::pair<std::string, Token>> sorted_;  // by text
  std::bitset<256> first_bytes_;
};

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOKENIZER_SPECIAL_MATCHER_H_
