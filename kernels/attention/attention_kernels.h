// Values shared by the plan, decode and prefill kernels of paged attention: work items, and the
// layout of the plan and scratch memory. Private to this folder.
#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_KERNELS_H_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_KERNELS_H_

#include <vector_types.h>

#include <cstddef>
#include <cstdint>

#include "kernels/attention/paged_attention.h"

namespace millrace::kernels::attention {

// Query rows per CTA tile of the decode and prefill kernels. A query row is one (token, query head
// of a kv head's group) pair.
inline constexpr int kDecodeRows = 16;
inline constexpr int kPrefillRows = 128;
// Query rows per tile when decode fuses rope and append (AttentionArgs::qkv).
inline constexpr int kFusedRopeRows = 8;

// Capacity for the partial results of a step, in (token, chunk) pairs: a million positions of
// context. Rows that do not fit are not split among CTAs.
inline constexpr int kPartials = 4096;

// Upper bounds on the CTAs of the decode and prefill kernels.
inline constexpr int kCtasPerSm = 2;
inline constexpr int kMaxCtas = 384;

// A row of the step that the decode kernel handles. Its chunks are those in which at least one of
// its tokens sees a position.
struct __attribute__((aligned(16))) DecodeRow {
  int slot;
  int token;  // index in the step of the row's first token
  int tokens;
  int position;  // of the first token
  // Index of the row's first partial result, or kWhole if one CTA takes the whole row. The result
  // of (chunk, token) is entry partial + (chunk - first chunk) * tokens + token.
  int partial;
};
inline constexpr int kWhole = -1;

// The work of one decode CTA: a contiguous range of (row, kv head, chunk), ordered by row, then
// head, then chunk. All ranges are about equally long, and few (row, kv head) pairs span two of
// them.
struct __attribute__((aligned(16))) DecodeRange {
  DecodeRow first;
  int row;  // index of `first` in Plan::decode_rows
  int head;
  int chunk;
  int end_row;  // the last row and head; of these, chunks before end_chunk
  int end_head;
  int end_chunk;
  int ahead;  // tiles that may be copied before the predecessor kernel has ended
};

// A tile of consecutive tokens of one prefill row. Each kv head processes it separately.
struct __attribute__((aligned(16))) PrefillItem {
  int slot;
  int token;
  int tokens;
  int position;
};

struct PlanHeader {
  int prefill_items;
  uint32_t next_prefill_item;  // tile counter; zero before and after each layer
  uint32_t idle_prefill_ctas;  // CTAs that found no item left; zero before and after each layer
  uint32_t last_launch;        // AttentionArgs::launch_number of the latest launch past its wait
};

// The parts of AttentionStep::plan, in this order.
struct Plan {
  PlanHeader* header;
  DecodeRange* ranges;  // [kMaxCtas]
  // [kPartials, kv_heads]: the number of a row's chunks whose partial results are stored, kept at
  // the row's first entry. Zero before and after each layer.
  uint32_t* arrivals;
  DecodeRow* decode_rows;  // [rows]
  int* decode_tiles;       // [rows + 1]: tiles of all earlier rows, for one kv head
  PrefillItem* prefill;    // [MaxPrefillItems], longest first
};

// The parts of AttentionArgs::scratch, in this order.
struct Scratch {
  float2* partial_sums;   // [kPartials, kv_heads, group]: largest score, sum of its probabilities
  float* partial_values;  // [kPartials, kv_heads, group, head_size]
  // [kMaxCtas, kPrefillRows * head_size / 4], in register order of a CTA's threads
  float4* totals;
};

inline int MaxPrefillItems(const AttentionStep& step) {
  const int tokens = kPrefillRows / (step.heads / step.kv_heads);
  return step.max_tokens / tokens + step.rows;
}

// Arguments of one launch with the memory layout and device limits resolved.
struct Launch {
  AttentionArgs args;
  Plan plan;
  Scratch scratch;
  int sms;
  int shared_per_sm;   // bytes
  int shared_per_cta;  // bytes
  cudaStream_t stream;
};

// Checks `args` and reads the current device's limits. Returns cudaErrorInvalidValue for invalid
// arguments.
cudaError_t MakeLaunch(const AttentionArgs& args, cudaStream_t stream, Launch& launch);

// Launches the plan kernel, which divides the decode work among `ctas` CTAs.
cudaError_t LaunchPlan(const AttentionStep& step, const Plan& plan, int ctas, cudaStream_t stream);
cudaError_t LaunchDecode(const Launch& launch);
cudaError_t LaunchPrefill(const Launch& launch);

// LaunchPrefillSm90 is the wgmma variant of LaunchPrefill, for the shapes that TakesPrefillSm90
// accepts.
bool TakesPrefillSm90(const AttentionArgs& args);
cudaError_t LaunchPrefillSm90(const Launch& launch);

// Returns the first position that a token at `position` sees.
__host__ __device__ inline int FirstVisible(int position, int window) {
  return window > 0 && position >= window ? position - window + 1 : 0;
}

}  // namespace millrace::kernels::attention

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_KERNELS_H_
