// Causal attention of a step's tokens over their sequences' paged keys and values
// (arXiv:2309.06180), for decode rows and prompt chunks alike.
//
// Exactness: the bits of a token's output depend only on its own sequence. They do not depend on
// the batch, on how a prompt was cut into steps, or on whether a position was computed in decode or
// in prefill. Keys are cut at absolute positions into chunks of kAttentionChunk and, within them,
// tiles of 64. A chunk is one chain of the same instructions for every query row (online softmax
// over its tiles, arXiv:2205.14135). Chunks are merged in ascending order by one formula
// (attention_math.cuh), beginning with the sink, and masked keys change no bit. So chunks may run
// on one SM or on many.
//
// Precision: scores, softmax and sums are float32. Queries and keys enter the tensor cores as BF16
// or, with FP8 keys, as FP16, which represents FP8 exactly. Values and probabilities enter as FP16.
// (Probabilities with BF16's 8 bits alone would take 2.0 to 2.8e-6 of a row's error bound of 2e-6.)
// FP8 scales are applied to scores and outputs.
#ifndef MILLRACE_KERNELS_ATTENTION_PAGED_ATTENTION_H_
#define MILLRACE_KERNELS_ATTENTION_PAGED_ATTENTION_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/attention/rope.h"
#include "kernels/types.h"

namespace millrace::kernels {

inline constexpr int kAttentionChunk = 256;  // positions

// The part of attention's arguments that all layers of a step with the same window share. The
// arrays are in device memory and may change between replays of a graph. The numbers belong to the
// host and are upper bounds.
struct AttentionStep {
  int rows;            // of the arrays below; a row may have no tokens
  int max_tokens;      // of the step: row_first[rows] <= max_tokens
  int max_row_tokens;  // of a row; 1 in a graph of decode rows
  // Row r consists of the step's tokens [row_first[r], row_first[r + 1]). The first is at position
  // row_start[r] of the sequence whose blocks are in row row_slot[r] of the block tables.
  const int32_t* row_first;  // [rows + 1], ascending from 0
  const int32_t* row_start;  // [rows]
  const int32_t* row_slot;   // [rows]
  int heads;                 // query heads: 1 to 16 per kv head
  int kv_heads;
  int window;  // a token at position p sees positions (p - window, p]; 0: all up to p
  // AttentionPlanBytes(step) bytes, 256-byte aligned. LaunchPlanAttention writes it, and every
  // LaunchPagedAttention of this step reads it. Zeroed before its first plan.
  void* plan;
};

struct AttentionArgs {
  AttentionStep step;
  const Bf16* q;       // [tokens, heads * head_size] in rows of q_stride, rotated; 16-byte aligned
  int64_t q_stride;    // elements, a multiple of 8
  KvPages pages;       // with the keys and values of the step's own tokens; 16-byte aligned
  BlockTables tables;  // no entry behind a row's last token, or wholly before its window, is read
  // [tokens, heads * head_size] in BF16, or in FP8 with Scaling::kTensor, which has the bits of
  // LaunchQuantize applied to the BF16 output. Columns up to the stride, a multiple of 8, are set
  // to zero.
  Activation out;
  float scale;     // of the scores
  float soft_cap;  // scores become cap * tanh(score / cap); 0 disables it
  // [heads], or null. Each query head has a logit that joins the denominator of its softmax and has
  // no value. It is neither scaled nor capped. -infinity has no effect.
  const float* sinks = nullptr;
  // AttentionScratchBytes(step, head_size) bytes, 256-byte aligned, for results that are merged
  // across chunks. It needs no initialization. Layers that run one after the other may share it.
  void* scratch;
  // The number of this launch among those since the plan, counted from 1; 0 disables reading ahead.
  // With a number, decode may read the plan, the tables and the pages of positions before a row's
  // first token while the kernels before it still run. It does so from the second launch on, once
  // the previous attention launch has passed its wait, so these inputs must be older than that
  // launch. All plans in one memory are followed by equally many numbered launches, or by none, and
  // an operation that does not start early lies between two of them (a copy, or the beginning of a
  // graph; launch.cuh, 4).
  uint32_t launch_number = 0;
  // Restricts the launch to kernels that run on all architectures. The bits are the same; those for
  // sm_90a are faster.
  bool portable = false;
  // An alternative to q for steps with max_row_tokens 1 and at most 8 query heads per kv head.
  // Attention then does the work of LaunchRopeAppend itself, bit for bit, and stores the new keys
  // and values to the pages. A block shared by several rows holds none of their new positions. Rows
  // without older positions, such as padding rows, may share all blocks; the content there is then
  // any one's of them.
  Product qkv = {};  // [tokens, QkvWidth]
  Rope rope = {};
};

// Return sizes in bytes that suffice for every step whose rows, max_tokens and max_row_tokens are
// not larger. The device arrays, `window` and `plan` are ignored.
size_t AttentionPlanBytes(const AttentionStep& step);
size_t AttentionScratchBytes(const AttentionStep& step, int head_size);

// MostAppendingRows returns the largest number of one-token rows for which passing qkv is faster
// than a separate LaunchRopeAppend; AppendsWithAttention, whether a step qualifies. With more rows
// a CTA has several, and begins each by waiting for its loads.
int MostAppendingRows(int heads, int kv_heads);
bool AppendsWithAttention(const AttentionStep& step);

// Divides the step into work items for the SMs. Call once per step and window, before its layers.
cudaError_t LaunchPlanAttention(const AttentionStep& step, cudaStream_t stream);

// Computes the attention of a step. It takes one launch if no row can have more than 16 / (heads /
// kv_heads) tokens (such rows take the decode kernel, which reads keys and values once), otherwise
// two.
//
// Only the pages of positions visible to some token of the row are read, so pages that were never
// written, NaN included, have no effect. Deterministic. Before anything runs it returns
// cudaErrorInvalidValue for shapes, strides and alignments other than those above, and
// cudaErrorInvalidConfiguration if the device has too little shared memory (head size 256 takes 192
// KB for prefill, 73 KB for decode).
cudaError_t LaunchPagedAttention(const AttentionArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_ATTENTION_PAGED_ATTENTION_H_
