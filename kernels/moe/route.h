// The router of a mixture of experts: logits of all experts for each token, and the choice of the
// token's experts with their scores (arXiv:1701.06538; groups and correction: DeepSeek-V3,
// arXiv:2412.19437).
#ifndef MILLRACE_KERNELS_MOE_ROUTE_H_
#define MILLRACE_KERNELS_MOE_ROUTE_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/moe/assign.h"
#include "kernels/types.h"

namespace millrace::kernels {

struct RmsNormArgs;

enum class RouterScores : uint8_t {
  kSoftmax,  // over the logits of all experts
  kSigmoid,  // of each logit
};

inline constexpr int kMaxExperts = 512;
inline constexpr int kMaxChosen = 16;
inline constexpr int kMaxExpertGroups = 32;

// The most columns for which a launch computes its norm itself (RouteArgs::norm).
inline constexpr int kMaxRoutedNorm = 4096;

// Tokens that share a counter in RouteArgs::counters.
inline constexpr int kRouteTokens = 8;

// For each token, in fp32:
//   logit[e] = x . weight[e] + bias[e];
//   score[e] = softmax or sigmoid of the logits;
//   value[e] = score[e] + correction[e]; of a softmax without correction and groups, logit[e].
// The experts form `groups` groups of equal size. The `chosen_groups` groups whose two largest
// values have the largest sums are eligible. The `chosen` eligible experts with the largest values
// are the token's, the largest first; of equal values (and of equal groups) the one that comes
// first. A NaN is below all numbers. Their scores are written, divided by their sum if
// `renormalize`, times `factor`.
//
// A token's results depend on that token alone, bit for bit. Products are exact (a weight in fp32
// is the sum of three BF16) and added by the tensor cores in fp32: 32 columns at a time by one of
// 16 warps in turn, and then the warps' sums in their order.
//
// Reads x, weight, bias and correction; writes logits, ids and scores. Launched for programmatic
// dependent launch: reads weights before the kernel before it has ended.
struct RouteArgs {
  const Bf16* x;            // [tokens, x_stride], 16-byte aligned
  int64_t x_stride;         // elements; a multiple of 8, at least hidden
  const void* weight;       // [rows, hidden], dense, 16-byte aligned, constant while steps run
  Type weight_type;         // kBf16 or kF32
  const float* bias;        // [rows], or null
  const float* correction;  // [experts], or null
  int tokens;
  int hidden;   // a multiple of 8
  int experts;  // 1 to kMaxExperts
  int rows;     // of weight: at least experts. The rest are linears of one output, such as a shared
                // expert's gate: they have logits and are not chosen.
  RouterScores scores;
  int chosen;             // 1 to kMaxChosen
  int groups = 1;         // 1 to kMaxExpertGroups, divides experts
  int chosen_groups = 1;  // their experts must be at least `chosen`
  bool renormalize = false;
  float factor = 1;

  float* logits;        // [tokens, rows]
  int32_t* ids;         // [tokens, chosen]
  float* token_scores;  // [tokens, chosen]
  // If not null, the launch also computes this assignment of the chosen ids, which saves a launch
  // of LaunchAssign. It takes up to kFewPairs pairs, and assign->ids must be `ids`.
  const AssignArgs* assign = nullptr;
  // If not null, of a single token: x is norm->out, in BF16, and the launch first does what
  // LaunchRmsNorm does, with the same bits, which saves that launch. norm->width is `hidden`, its
  // out.stride at most kMaxRoutedNorm, and its mixture null.
  const RmsNormArgs* norm = nullptr;
  // [ceil(tokens / kRouteTokens) + 1], 0 before the first launch, and left so; one stream's at a
  // time.
  unsigned* counters;
};

cudaError_t LaunchRoute(const RouteArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_MOE_ROUTE_H_
