// Token counts of a sequence, for its penalties.
#ifndef MILLRACE_EXECUTORS_HOST_TOKEN_COUNTS_H_
#define MILLRACE_EXECUTORS_HOST_TOKEN_COUNTS_H_

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "plan/sampling_params.h"

namespace millrace {

class TokenCounts {
 public:
  // Recounts from `history`, which begins with the prompt.
  void Reset(absl::Span<const Token> history, int32_t prompt_tokens) {
    generated_.clear();
    for (const Token token : history.first(prompt_tokens)) generated_[token] = 0;
    for (const Token token : history.subspan(prompt_tokens)) AddGenerated(token);
  }
  void AddGenerated(Token token) { ++generated_[token]; }

  // Maps each token of the prompt or the generated text to how often it was generated, in no
  // particular order.
  const absl::flat_hash_map<Token, int32_t>& generated() const { return generated_; }

 private:
  absl::flat_hash_map<Token, int32_t> generated_;
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_HOST_TOKEN_COUNTS_H_
