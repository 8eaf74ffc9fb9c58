// Reads --speculative-config: what of answers is drafted.
#ifndef MILLRACE_CONFIG_SPECULATIVE_CONFIG_H_
#define MILLRACE_CONFIG_SPECULATIVE_CONFIG_H_

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace millrace {

// The keys and their names are vLLM's.
struct SpeculativeConfig {
  bool lookup = true;                  // method: ngram and suffix; false: none
  int32_t num_speculative_tokens = 8;  // the most of a draft
  int32_t prompt_lookup_min = 3;       // the fewest tokens of a match
};

inline constexpr int32_t kMaxSpeculativeTokens = 16;

// Reads a JSON object; an empty text has the defaults. InvalidArgument names the key, what came and
// what is allowed.
absl::StatusOr<SpeculativeConfig> ParseSpeculativeConfig(std::string_view json);

}  // namespace millrace

#endif  // MILLRACE_CONFIG_SPECULATIVE_CONFIG_H_
