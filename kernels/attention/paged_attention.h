// Causal attention of a step's tokens over their sequences' paged keys and values
// (arXiv:2309.06180), for decode rows and prompt chunks alike.
//
// Exact: the bits of a token's output depend on its own sequence alone; not on the batch, nor on
// how a prompt was cut into steps, nor on whether a position was computed while decoding or while
// reading a prompt. Keys are cut at absolute positions: into chunks of kAttentionChunk and, inside
// them, tiles of 64. A chunk is one chain of the same instructions for every row of queries (online
// softmax over its tiles, arXiv:2205.14135), chunks are merged in ascending order by one formula
// (attention_math.cuh), and what is masked changes no bit. So chunks may run on one SM or on many.
//
// Numbers: scores, softmax and sums in float32. Queries and keys enter the tensor cores as BF16,
// and as FP16 where the keys are FP8, which are exact in it; values and probabilities as FP16
// (BF16's 8 bits for probabilities alone would take 2.0 to 2.8e-6 of a row's bound of 2e-6). FP8's
// scales are applied to scores and outputs.
#ifndef MILLRACE_KERNELS_ATTENTION_PAGED_ATTENTION_H_
#define MILLRACE_KERNELS_ATTENTION_PAGED_ATTENTION_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/attention/rope.h"
#include "kernels/types.h"

namespace millrace::kernels {

inline constexpr int kAttentionChunk = 256;  // positions

// What layers of one step and one window share. All arrays are in device memory and may change from
// replay to replay of a graph; the numbers are the host's and are bounds.
struct AttentionStep {
  int rows;            // of the arrays below; a row may have no tokens
  int max_tokens;      // of the step: row_first[rows] <= max_tokens
  int max_row_tokens;  // of a row; 1 in a graph of decode rows
  // Row r has the step's tokens [row_first[r], row_first[r + 1]), the first of them at position
  // row_start[r] of the sequence whose blocks are in row row_slot[r] of the block tables.
  const int32_t* row_first;  // [rows + 1], ascending from 0
  const int32_t* row_start;  // [rows]
  const int32_t* row_slot;   // [rows]
  int heads;                 // of queries: 1 to 16 for each of the kv_heads
  int kv_heads;
  int window;  // a token at position p sees positions (p - window, p]; 0: all up to p
  // Of AttentionPlanBytes(step), 256-byte aligned: written by LaunchPlanAttention, read by every
  // LaunchPagedAttention of this step. Before its first plan the memory holds zeros.
  void* plan;
};

struct AttentionArgs {
  AttentionStep step;
  const Bf16* q;       // [tokens, heads * head_size] in rows of q_stride, rotated; 16-byte aligned
  int64_t q_stride;    // elements, a multiple of 8
  KvPages pages;       // with the keys and values of the step's own tokens; 16-byte aligned
  BlockTables tables;  // entries beyond a sequence's last token are not read
  // [tokens, heads * head_size], BF16, or FP8 with Scaling::kTensor: what LaunchQuantize makes of
  // the BF16. Columns up to the stride, a multiple of 8, are set to zero.
  Activation out;
  float scale;     // of the scores
  float soft_cap;  // scores become cap * tanh(score / cap); 0: they do not
  // Of AttentionScratchBytes(step, head_size), 256-byte aligned: what is between two chunks. Layers
  // that run one after the other may share it; nothing need be in it.
  void* scratch;
  // 0, or the place of this launch, from 1 on, among those since the plan. Decoding may then read
  // ahead: while the kernels before it still run, the plan, the tables and those positions' pages
  // that lie before a row's first token. From the second launch on, when the one before has waited
  // for all that came before it: these must be older than that one. All plans in one memory have as
  // many launches with places, or none, and something that does not start early lies between two of
  // them (a copy, a graph's beginning; launch.cuh, 4).
  uint32_t turn = 0;
  // Only kernels for all architectures: the bits are the same, sm_90a's are faster.
  bool portable = false;
  // Instead of q, in steps whose max_row_tokens is 1 and heads for each kv head are at most 8: what
  // LaunchRopeAppend makes of it is then made here, bit for bit, and the new keys and values are
  // stored to the pages. Rows that share a block have none of their new positions in it, but rows
  // without older positions may have all of it in common: what lies there is then any one's.
  Product qkv = {};  // [tokens, (heads + 2 * kv_heads) * head_size]
  Rope rope = {};
};

// Bytes that serve every step whose rows, max_tokens and max_row_tokens are not larger (the device
// arrays, `window` and `plan` are not looked at).
size_t AttentionPlanBytes(const AttentionStep& step);
size_t AttentionScratchBytes(const AttentionStep& step, int head_size);

// Whether such a step's attention had better be given qkv: up to how many rows of one token each.
// With many rows a launch of its own is faster: a CTA that has several rows begins each by waiting
// for what it reads.
int MostAppendingRows(int heads, int kv_heads);
bool AppendsWithAttention(const AttentionStep& step);

// Cuts the step into work items for the SMs: once a step (and window), before its layers.
cudaError_t LaunchPlanAttention(const AttentionStep& step, cudaStream_t stream);

// One launch when no row of the step can have more than 16 / (heads / kv_heads) tokens (such rows
// are decoded: they read their keys and values once), otherwise two.
//
// Reads the pages of positions that some token of the row sees, and no others: what lies in
// never-written pages, NaN included, has no effect. Deterministic. Returns cudaErrorInvalidValue,
// before anything runs, for shapes, strides and alignments other than those above, and
// cudaErrorInvalidConfiguration where the device has too little shared memory (head size 256 wants
// 192 KB for a prompt, 73 to decode).
cudaError_t LaunchPagedAttention(const AttentionArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_ATTENTION_PAGED_ATTENTION_H_
