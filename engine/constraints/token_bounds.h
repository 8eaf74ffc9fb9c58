// Holds an answer to some tokens and keeps sequences of tokens out of it, whatever its grammar:
// vLLM's allowed_token_ids and bad_words.
#ifndef MILLRACE_ENGINE_CONSTRAINTS_TOKEN_BOUNDS_H_
#define MILLRACE_ENGINE_CONSTRAINTS_TOKEN_BOUNDS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/token.h"
#include "text/grammar/vocabulary.h"
#include "text/tokenizer/tokenizer.h"

namespace millrace {

// Returns the sequences of tokens that write these words, as vLLM finds them: each word without the
// white space before it; and behind one space, where that has as many tokens and another first one.
// Special tokens are recognized. InvalidArgument: a word has no tokens.
absl::StatusOr<std::vector<std::vector<Token>>> TokenizeBadWords(
    const Tokenizer& tokenizer, absl::Span<const std::string> words);

// Follows one answer. A copy goes on by itself.
class TokenBounds {
 public:
  // `allowed`: the tokens that may be sampled; empty: all. The last token of a sequence of
  // `forbidden` may not follow the others, within the answer. `vocab_size`: the model's logits.
  TokenBounds(absl::Span<const Token> allowed, std::vector<std::vector<Token>> forbidden,
              int32_t vocab_size);

  // Moves past a token of the answer.
  void Accept(Token token);
  // Returns the tokens that may come next, of those of `within` unless it is null.
  std::shared_ptr<const TokenMask> Mask(const TokenMask* within) const;

 private:
  std::shared_ptr<const TokenMask> always_;  // without what `sequences_` forbid for now
  // Those that are forbidden, of two tokens and more; copies share them.
  std::shared_ptr<const std::vector<std::vector<Token>>> sequences_;
  size_t longest_ = 0;       // of these
  std::vector<Token> tail_;  // the answer's last tokens, at most longest_ - 1
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_CONSTRAINTS_TOKEN_BOUNDS_H_
