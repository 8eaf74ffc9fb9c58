// Kernel parameters derived from AttentionArgs, and the loads and stores of query and output rows.
#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_PARAMS_CUH_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_PARAMS_CUH_

#include <bit>

#include "kernels/attention/attention_kernels.h"
#include "kernels/attention/attention_math.cuh"
#include "kernels/attention/attention_tile.cuh"
#include "kernels/fp8.cuh"

namespace millrace::kernels::attention {

struct Params {
  const Bf16* q;
  int64_t q_stride;
  void* out;  // FP8 if out_scale is set, otherwise BF16
  int64_t out_stride;
  const float* out_scale;
  Product qkv;  // used instead of q if set
  Rope rope;    // applied to qkv
  uint8_t* pages;
  int64_t block_stride;  // bytes
  int64_t head_stride;   // bytes
  int block_shift;
  const int32_t* blocks;
  int64_t table_stride;
  int kv_heads;
  int group;               // heads of queries a kv head
  uint32_t group_inverse;  // ceil(2^16 / group)
  int window;
  ScoreRule rule;
  float value_scale;
  float key_inverse;  // factors applied to keys and values that are stored as FP8
  float value_inverse;
  uint32_t launch_number;
  Plan plan;
  Scratch scratch;
  const float* sinks;  // AttentionArgs::sinks
  float sink_unit;     // converts a sink to a score's unit (ScoreRule)

  __device__ HeadPages Head(int head) const {
    return {pages + head * head_stride, block_stride, kv_heads * head_stride, block_shift};
  }
  // Returns whether this launch applies rope and appends keys and values itself
  // (AttentionArgs::qkv).
  __device__ bool FusesRope() const { return qkv.data != nullptr; }
  // Return the token and the query head of row `row` < 128, relative to the tile's first token and
  // the kv head's group.
  __device__ int Token(int row) const { return row * group_inverse >> 16; }
  __device__ int HeadOf(int row) const { return row - Token(row) * group; }
  // Returns the element offset of a row in q or out. `token` is the tile's first token.
  __device__ int64_t RowOffset(int64_t stride, int token, int head, int row, int head_size) const {
    return (token + Token(row)) * stride + (head * group + HeadOf(row)) * head_size;
  }
  // Returns the total of a query row before its first chunk. A sink is a chunk of one key without
  // values. `head` is the row's kv head.
  __device__ Softmax FirstTotal(int head, int row) const {
    // Selects, since nvcc 13.0 does not end compiling FP8 prefill with a branch here.
    const bool has_sink = sinks != nullptr;
    return {
        has_sink ? __fmul_rn(__ldg(sinks + head * group + HeadOf(row)), sink_unit) : -Infinity(),
        has_sink ? 1.0f : 0.0f};
  }
  __device__ const int32_t* Blocks(int slot) const { return blocks + slot * table_stride; }
  // Returns the positions visible to any of `tokens` consecutive tokens from `position` on.
  __device__ Span Visible(int position, int tokens) const {
    return {FirstVisible(position, window), position + tokens};
  }
};

// Called by one thread of each CTA that found no item left. The last CTA resets the tile counter.
__device__ inline void LeavePrefill(PlanHeader& header) {
  if (atomicInc(&header.idle_prefill_ctas, gridDim.x - 1) == gridDim.x - 1) {
    header.next_prefill_item = 0;
  }
}

// Starts the asynchronous copies of kRows query rows to shared address `to`, by kThreads threads.
// `of` is a DecodeRow or PrefillItem; rows beyond its tokens become zeros.
template <int kHeadSize, int kRows, int kThreads, typename Tokens>
__device__ inline void LoadQueries(const Params& params, const Tokens& of, int head, uint32_t to,
                                   int thread) {
  using Row = typename Tile<Bf16, kHeadSize>::QueryRow;
  for (int i = thread; i < kRows * Row::kWords; i += kThreads) {
    const int row = i / Row::kWords;
    const int word = i % Row::kWords;
    const bool valid = params.Token(row) < of.tokens;
    const Bf16* from = params.q;
    if (valid) {
      from += params.RowOffset(params.q_stride, of.token, head, row, kHeadSize) + word * 8;
    }
    CopyAsync(to + Row::Offset(row, word), from, valid);
  }
}

inline Params MakeParams(const Launch& launch) {
  const AttentionArgs& args = launch.args;
  const KvPages& pages = args.pages;
  const int size = pages.type == Type::kFp8 ? 1 : 2;
  const float scale = args.scale * pages.k_scale;
  const unsigned group = args.step.heads / pages.kv_heads;
  return {
      .q = args.q,
      .q_stride = args.q_stride,
      .out = args.out.data,
      .out_stride = args.out.stride,
      .out_scale = args.out.type == Type::kFp8 ? args.out.scales : nullptr,
      .qkv = args.qkv,
      .rope = args.rope,
      .pages = static_cast<uint8_t*>(pages.data),
      .block_stride = pages.block_stride * size,
      .head_stride = int64_t{pages.block_size} * pages.head_size * size,
      .block_shift = std::countr_zero(static_cast<unsigned>(pages.block_size)),
      .blocks = args.tables.blocks,
      .table_stride = args.tables.stride,
      .kv_heads = pages.kv_heads,
      .group = static_cast<int>(group),
      .group_inverse = ((1u << 16) + group - 1) / group,
      .window = args.step.window,
      .rule = {.soft_cap = args.soft_cap,
               .capped_scale = args.soft_cap > 0 ? 2 * kLog2E * scale / args.soft_cap : 0,
               .log2_unit = args.soft_cap > 0 ? kLog2E : kLog2E * scale},
      .value_scale = pages.v_scale,
      .key_inverse = Fp8Inverse(pages.k_scale),
      .value_inverse = Fp8Inverse(pages.v_scale),
      .launch_number = args.launch_number,
      .plan = launch.plan,
      .scratch = launch.scratch,
      .sinks = args.sinks,
      .sink_unit = args.soft_cap > 0 ? 1 : 1 / scale,
  };
}

// Stores kColumns (4 or 2) consecutive outputs from element `to` on. FP8 outputs are rounded to
// BF16 first, so their bits equal those of a separate quantize kernel.
template <int kColumns>
__device__ inline void StoreOutputs(const Params& params, int64_t to,
                                    const float (&values)[kColumns], float factor) {
  uint32_t words[kColumns / 2];
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) {
    words[i] = PackBf16(__fmul_rn(values[2 * i], factor), __fmul_rn(values[2 * i + 1], factor));
  }
  if (params.out_scale != nullptr) {
    const float inverse = Fp8Inverse(*params.out_scale);
    uint16_t codes[kColumns / 2];
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) {
      codes[i] = Fp8Codes2(UnpackBf16(words[i]), inverse);
    }
    auto* const out = reinterpret_cast<uint16_t*>(static_cast<uint8_t*>(params.out) + to);
    if constexpr (kColumns == 4) {
      *reinterpret_cast<uint32_t*>(out) = codes[0] | static_cast<uint32_t>(codes[1]) << 16;
    } else {
      *out = codes[0];
    }
    return;
  }
  auto* const out = reinterpret_cast<uint32_t*>(static_cast<Bf16*>(params.out) + to);
  if constexpr (kColumns == 4) {
    *reinterpret_cast<uint2*>(out) = make_uint2(words[0], words[1]);
  } else {
    *out = words[0];
  }
}

// Zeros the padding columns behind the last head's outputs of `tokens` consecutive tokens.
template <int kThreads>
__device__ inline void StorePadding(const Params& params, int first_token, int tokens, int head,
                                    int head_size, int thread) {
  if (head != params.kv_heads - 1) return;
  const int width = params.kv_heads * params.group * head_size;
  for (int token = first_token; token < first_token + tokens; ++token) {
    for (int64_t column = width + thread; column < params.out_stride; column += kThreads) {
      const int64_t at = token * params.out_stride + column;
      if (params.out_scale != nullptr) {
        static_cast<uint8_t*>(params.out)[at] = 0;
      } else {
        static_cast<Bf16*>(params.out)[at] = __float2bfloat16(0);
      }
    }
  }
}

}  // namespace millrace::kernels::attention

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_PARAMS_CUH_
