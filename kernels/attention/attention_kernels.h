// What the three kernels of paged attention pass on to one another: work items, and where they and
// what is between two chunks lie in the caller's memory. Not for others.
#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_KERNELS_H_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_KERNELS_H_

#include <vector_types.h>

#include <cstddef>
#include <cstdint>

#include "kernels/attention/paged_attention.h"

namespace millrace::kernels::attention {

// Rows of queries, (token, head of the kv head's group), that a decoding and a prompt-reading CTA
// take at once.
inline constexpr int kDecodeRows = 16;
inline constexpr int kPrefillRows = 128;
// So many if it makes them itself.
inline constexpr int kMadeRows = 8;

// How many (token, chunk) pairs of a step may have partial results: a million positions of context.
// Rows for which there is no place left are not divided among CTAs.
inline constexpr int kPartials = 4096;

// CTAs of both kernels, at most.
inline constexpr int kCtasPerSm = 2;
inline constexpr int kMaxCtas = 384;

// A row that is decoded. Its chunks are those in which some token of it sees a position.
struct __attribute__((aligned(16))) DecodeRow {
  int slot;
  int token;  // of the step: the first
  int tokens;
  int position;  // of the first
  // Partial results of a chunk and token are entry partial + (chunk - the first) * tokens + token.
  int partial;  // or kWhole
};
inline constexpr int kWhole = -1;

// What one CTA decodes: a stretch of the line of all rows, in it of all kv heads, in it of all
// chunks. All CTAs' stretches are about as long, and few (row, kv head) are in more than one.
struct __attribute__((aligned(16))) DecodeRange {
  DecodeRow first;
  int row;  // of Plan::decode_rows: that of `first`
  int head;
  int chunk;
  int end_row;  // the last, with chunks up to end_chunk
  int end_head;
  int end_chunk;
  int ahead;  // the tiles that it may copy while an append runs
};

// Tokens of a row of a prompt, for each kv head.
struct __attribute__((aligned(16))) PrefillItem {
  int slot;
  int token;
  int tokens;
  int position;
};

struct PlanHeader {
  int prefill_items;
  uint32_t next_prefill_item;  // taken by CTAs; both are zero before and after each layer
  uint32_t idle_prefill_ctas;
  uint32_t turn;  // of AttentionArgs: the last that was taken
};

// The parts of AttentionStep::plan, in this order.
struct Plan {
  PlanHeader* header;
  DecodeRange* ranges;  // [kMaxCtas]
  // [kPartials, kv_heads]: how many chunks' partial results of a row are there, at the first's
  // entry; zero before and after each layer.
  uint32_t* arrivals;
  DecodeRow* decode_rows;  // [rows]
  int* decode_tiles;       // [rows + 1]: of the rows before, for one kv head
  PrefillItem* prefill;    // [MaxPrefillItems], longest first
};

// The parts of AttentionArgs::scratch, in this order.
struct Scratch {
  float2* partial_sums;   // [kPartials, kv_heads, group]: largest score, sum of its probabilities
  float* partial_values;  // [kPartials, kv_heads, group, head_size]
  // [kMaxCtas, kPrefillRows * head_size / 4], in the order of a CTA's registers
  float4* totals;
};

inline int MaxPrefillItems(const AttentionStep& step) {
  const int tokens = kPrefillRows / (step.heads / step.kv_heads);
  return step.max_tokens / tokens + step.rows;
}

// What a kernel is launched with.
struct Launch {
  AttentionArgs args;
  Plan plan;
  Scratch scratch;
  int sms;
  int shared_per_sm;   // bytes
  int shared_per_cta;  // bytes
  cudaStream_t stream;
};

// Checks the arguments, and asks the current device what it has.
cudaError_t MakeLaunch(const AttentionArgs& args, cudaStream_t stream, Launch& launch);

// For `ctas` that decode.
cudaError_t LaunchPlan(const AttentionStep& step, const Plan& plan, int ctas, cudaStream_t stream);
cudaError_t LaunchDecode(const Launch& launch);
cudaError_t LaunchPrefill(const Launch& launch);

// The same with wgmma, for shapes of its own.
bool TakesPrefillSm90(const AttentionArgs& args);
cudaError_t LaunchPrefillSm90(const Launch& launch);

// The first position that a token at `position` sees.
__host__ __device__ inline int FirstVisible(int position, int window) {
  return window > 0 && position >= window ? position - window + 1 : 0;
}

}  // namespace millrace::kernels::attention

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_KERNELS_H_
