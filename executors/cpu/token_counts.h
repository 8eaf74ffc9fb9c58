// How often a sequence's tokens have come, for its penalties.
#ifndef MILLRACE_EXECUTORS_CPU_TOKEN_COUNTS_H_
#define MILLRACE_EXECUTORS_CPU_TOKEN_COUNTS_H_

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "scheduler/sampling_params.h"

namespace millrace::cpu {

class TokenCounts {
 public:
  // Forgets what it held; `history` begins with the prompt.
  void Reset(absl::Span<const Token> history, int32_t prompt_tokens) {
    generated_.clear();
    for (const Token token : history.first(prompt_tokens)) generated_[token] = 0;
    for (const Token token : history.subspan(prompt_tokens)) AddGenerated(token);
  }
  void AddGenerated(Token token) { ++generated_[token]; }

  // Of each token in the prompt or generated, how often it was generated. In no particular order.
  const absl::flat_hash_map<Token, int32_t>& generated() const { return generated_; }

 private:
  absl::flat_hash_map<Token, int32_t> generated_;
};

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_TOKEN_COUNTS_H_
