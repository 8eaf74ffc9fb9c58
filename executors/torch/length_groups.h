// Chooses which sequences of a step a package runs together.
#ifndef MILLRACE_EXECUTORS_TORCH_LENGTH_GROUPS_H_
#define MILLRACE_EXECUTORS_TORCH_LENGTH_GROUPS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace millrace::aten {

// Sequences that run together are padded to the longest. Up to so many tokens in all that is
// cheaper than a run more, which reads all weights.
inline constexpr int64_t kCheapPaddedLength = 4096;

// Cuts sequences of these lengths (in tokens, ascending) into groups of neighbours: padded, a group
// has at most twice its tokens, or kCheapPaddedLength. Returns where each ends.
std::vector<size_t> CutByLength(absl::Span<const int64_t> lengths);

}  // namespace millrace::aten

#endif  // MILLRACE_EXECUTORS_TORCH_LENGTH_GROUPS_H_
