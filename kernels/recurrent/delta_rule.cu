#include "kernels/recurrent/delta_rule.h"

#include "kernels/arguments.h"
#include "kernels/device_util.cuh"
#include "kernels/launch.cuh"
#include "kernels/recurrent/delta_block.cuh"

namespace millrace::kernels {
namespace recurrent {
namespace {

// A thread's copies of the whole blocks of a row, one after the other.
template <int kGroup, int kColumns, int kThreads>
class BlockCopies {
 public:
  // `token` is the first one of the first whole block.
  __device__ BlockCopies(const DeltaRuleArgs& args, int64_t token, int key_head, int first_column)
      : pair_stride_(int64_t{args.heads.key_heads} * 2 * kDeltaHeadSize),
        value_width_(args.heads.value_width()),
        weight_stride_(int64_t{args.heads.value_heads} * kWeightChunks) {
    const int thread = static_cast<int>(threadIdx.x);
    pairs_ = args.operands.keys_queries + (token + thread / kPairChunks) * pair_stride_ +
             key_head * 2 * kDeltaHeadSize + 4 * (thread % kPairChunks);
    const int head = ValueHead<kGroup>(args.heads, key_head, thread % kTokenChunks / kValueChunks);
    values_ = args.operands.values + (token + thread / kTokenChunks) * value_width_ +
              head * kDeltaHeadSize + first_column + 4 * (thread % kValueChunks);
#pragma unroll
    for (int i = 0; i < kThreadWeights; ++i) {
      const int chunk = i * kThreads + thread;
      const int i_head = min(chunk / kWeightChunks, kGroup - 1);
      weights_[i] = reinterpret_cast<const uint4*>(args.weights) + token / kBlock * weight_stride_ +
                    ValueHead<kGroup>(args.heads, key_head, i_head) * kWeightChunks +
                    chunk % kWeightChunks;
    }
  }

  // Begins the copies of the next block.
  __device__ void Begin(Stage<kGroup, kColumns>& stage) {
    const int thread = static_cast<int>(threadIdx.x);
    float* const to = stage.keys[0] + thread % kPairChunks / kKeyChunks * kBlock * kDeltaHeadSize +
                      thread / kPairChunks * kDeltaHeadSize + 4 * (thread % kKeyChunks);
#pragma unroll
    for (int t = 0; t < kBlock; t += kThreads / kPairChunks) {
      CopyAsync(to + t * kDeltaHeadSize, pairs_ + t * pair_stride_);
    }
    if (thread < kBlock * kTokenChunks) {
      CopyAsync(stage.values[0][0] + 4 * thread, values_);
    }
#pragma unroll
    for (int i = 0; i < kThreadWeights; ++i) {
      const int chunk = i * kThreads + thread;
      if (chunk >= kGroup * kWeightChunks) break;
      CopyAsync(reinterpret_cast<uint4*>(stage.weights) + chunk, weights_[i]);
      weights_[i] += weight_stride_;
    }
    pairs_ += kBlock * pair_stride_;
    values_ += kBlock * value_width_;
  }

 private:
  static constexpr int kPairChunks = 2 * kKeyChunks;
  static constexpr int kValueChunks = kColumns / 4;
  static constexpr int kTokenChunks = kGroup * kValueChunks;
  static constexpr int kThreadWeights = CeilDiv(kGroup * kWeightChunks, kThreads);
  static_assert(kThreads % kPairChunks == 0 && kBlock * kTokenChunks <= kThreads);

  const int64_t pair_stride_, value_width_, weight_stride_;
  const float* pairs_;
  const float* values_;
  const uint4* weights_[kThreadWeights];
};

// Begins the copies of a block's part: of tokens [from, to), the first of which is `token` of the
// step, the operands, and of those before them what `slot` keeps.
template <int kGroup, int kColumns, int kThreads>
__device__ void CopyPart(const DeltaRuleArgs& args, int64_t token, int from, int to, int key_head,
                         int first_column, const float* slot, Stage<kGroup, kColumns>& stage,
                         Part<kGroup, kColumns>& part) {
  constexpr int kPairChunks = 2 * kKeyChunks, kValueChunks = kColumns / 4;
  constexpr int kTokenChunks = kGroup * kValueChunks;
  const DeltaHeads& heads = args.heads;
  const unsigned thread = threadIdx.x, before = from, count = to - from;
#pragma unroll 1
  for (unsigned item = thread; item < before * kKeyChunks; item += kThreads) {
    const unsigned j = item / kKeyChunks, chunk = item % kKeyChunks;
    CopyAsync(stage.keys[j] + 4 * chunk,
              slot + StateParts(heads).keys +
                  (int64_t{j} * heads.key_heads + key_head) * kDeltaHeadSize + 4 * chunk);
  }
  const auto column_of = [&](unsigned chunk) {
    return ValueHead<kGroup>(heads, key_head, chunk / kValueChunks) * kDeltaHeadSize +
           first_column + 4 * (chunk % kValueChunks);
  };
#pragma unroll 1
  for (unsigned item = thread; item < before * kTokenChunks; item += kThreads) {
    CopyAsync(part.deltas[0][0] + 4 * item, slot + StateParts(heads).deltas +
                                                item / kTokenChunks * heads.value_width() +
                                                column_of(item % kTokenChunks));
  }
#pragma unroll 1
  for (unsigned item = thread; item < count * kPairChunks; item += kThreads) {
    const unsigned t = item / kPairChunks, chunk = item % kPairChunks;
    float(*const rows)[kDeltaHeadSize] = chunk < kKeyChunks ? stage.keys : stage.queries;
    CopyAsync(rows[from + t] + 4 * (chunk % kKeyChunks),
              args.operands.keys_queries +
                  ((token + t) * heads.key_heads + key_head) * 2 * kDeltaHeadSize + 4 * chunk);
  }
#pragma unroll 1
  for (unsigned item = thread; item < count * kTokenChunks; item += kThreads) {
    CopyAsync(stage.values[from][0] + 4 * item,
              args.operands.values + (token + item / kTokenChunks) * heads.value_width() +
                  column_of(item % kTokenChunks));
  }
#pragma unroll 1
  for (unsigned item = thread; item < count * kGateChunks; item += kThreads) {
    const unsigned t = item / kGateChunks, chunk = item % kGateChunks;
    CopyAsync(reinterpret_cast<uint4*>(&part.gates[from + t]) + chunk,
              reinterpret_cast<const uint4*>(args.operands.gates + (token + t) * heads.key_heads +
                                             key_head) +
                  chunk);
  }
  CommitCopies();
#pragma unroll 1
  for (unsigned item = thread; item < before * kGroup; item += kThreads) {
    const unsigned j = item / kGroup, i = item % kGroup;
    part.gates[j].decay[i] = slot[StateParts(heads).decays + int64_t{j} * heads.value_heads +
                                  ValueHead<kGroup>(heads, key_head, i)];
  }
}

template <int kColumns, int kLaneColumns>
constexpr int kRuleThreads = kColumns / (kWarpColumns * kLaneColumns) * kWarpSize;

// Writes the key and the decays of a block's token to a slot. `key` is 16-byte aligned. Called by
// at least as many threads as a key has copies of 16 bytes.
__device__ void KeepToken(const DeltaHeads& heads, int key_head, int t, const float* key,
                          const float* decays, float* slot) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kKeyChunks) {
    float* const to =
        slot + StateParts(heads).keys + (int64_t{t} * heads.key_heads + key_head) * kDeltaHeadSize;
    reinterpret_cast<float4*>(to)[thread] = reinterpret_cast<const float4*>(key)[thread];
  }
  if (thread < heads.group()) {
    slot[StateParts(heads).decays + int64_t{t} * heads.value_heads +
         heads.ValueHead(key_head, thread)] = decays[thread];
  }
}

// The grid is (blocks of columns, key heads, rows). A CTA runs through the tokens of a row: those
// that are left of a block that an earlier row began, whole blocks, whose operands arrive by
// asynchronous copies two blocks ahead, and those that begin a block. Without kPrompts each row has
// one token.
template <int kGroup, int kColumns, int kLaneColumns, bool kPrompts>
__global__ void __launch_bounds__(kRuleThreads<kColumns, kLaneColumns>)
    DeltaRuleKernel(const __grid_constant__ DeltaRuleArgs args) {
  constexpr int kThreads = kRuleThreads<kColumns, kLaneColumns>;
  constexpr int kStages = kPrompts ? 3 : 1;
  __shared__ Stage<kGroup, kColumns> stages[kStages];
  __shared__ Part<kGroup, kColumns> part;
  const int lane = threadIdx.x % kColumnLanes;
  const int column = static_cast<int>(threadIdx.x) / kColumnLanes * kLaneColumns;  // of the CTA
  const int first_column = blockIdx.x * kColumns;
  const int key_head = blockIdx.y, row = blockIdx.z;
  AwaitPredecessor();
  const int64_t first = args.rows.row_first[row];
  const int tokens = kPrompts ? static_cast<int>(args.rows.row_first[row + 1] - first)
                              : min(static_cast<int>(args.rows.row_first[row + 1] - first), 1);
  const int begin = args.rows.row_start[row];
  const int64_t slot_index = args.rows.row_slot[row];
  if (tokens <= 0) return;
  float* const slot = args.state.data + slot_index * args.state.slot_stride;
  const StateParts parts(args.heads);

  const int from = static_cast<unsigned>(begin) % kBlock;
  const int before = !kPrompts || from != 0 ? min(tokens, kBlock - from) : 0;
  const int blocks = (tokens - before) / kBlock;
  const int behind = (tokens - before) % kBlock;

  LaneState<kGroup, kColumns, kLaneColumns> state(args.heads, key_head, first_column, column, lane);
  if (begin < kBlock) {
    state.Clear();
  } else {
    state.Load(slot + parts.heads);
  }
  float* const out = args.out + first * args.heads.value_width();
  // Computes tokens [t, t + count) of a block, whose copies to the last stage are complete. `at` is
  // the first one's number in the row.
  const auto advance_part = [&](int at, int t, int count) {
    Stage<kGroup, kColumns>& stage = stages[kStages - 1];
    WeighTokens<kGroup, kThreads>(stage.keys, stage.queries, part.gates, t, t + count,
                                  part.products, stage.weights, 1);
    __syncthreads();
    const bool ends = t + count == kBlock;
    for (int i = 0; i < count; ++i) {
      float* const kept = ends ? nullptr : slot + parts.deltas + (t + i) * args.heads.value_width();
      state.AdvanceToken(stage, part, t + i, out + (at + i) * args.heads.value_width(), kept);
    }
    if (ends) state.EndBlock(stage, part);
  };

  if constexpr (!kPrompts) {
    CopyPart<kGroup, kColumns, kThreads>(args, first, from, from + 1, key_head, first_column, slot,
                                         stages[0], part);
    WaitForCopies<0>();
    __syncthreads();
    advance_part(0, from, 1);
    if (from == kBlock - 1) {
      state.Store(slot + parts.heads);
    } else if (blockIdx.x == 0) {
      // Other CTAs read what is kept of earlier tokens only.
      KeepToken(args.heads, key_head, from, stages[0].keys[from], part.gates[from].decay, slot);
    }
  } else {
    if (before > 0) {
      CopyPart<kGroup, kColumns, kThreads>(args, first, from, from + before, key_head, first_column,
                                           slot, stages[kStages - 1], part);
    }
    BlockCopies<kGroup, kColumns, kThreads> copies(args, first + before, key_head, first_column);
    int copied = 0;  // blocks
    const auto copy_block = [&](Stage<kGroup, kColumns>& stage) {
      if (copied < blocks) copies.Begin(stage);
      CommitCopies();
      ++copied;
    };
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) copy_block(stages[i]);
    if (before > 0) {
      WaitForCopies<kStages - 1>();
      __syncthreads();
      advance_part(0, from, before);
    }
    int stage = 0;
    for (int block = 0; block < blocks; ++block) {
      WaitForCopies<kStages - 2>();
      __syncthreads();  // the block is there for all, and all have left the stage before it
      copy_block(stages[stage == 0 ? kStages - 1 : stage - 1]);
      state.AdvanceBlock(stages[stage], out + (before + block * kBlock) * args.heads.value_width());
      stage = stage == kStages - 1 ? 0 : stage + 1;
    }
    if (behind > 0) {
      __syncthreads();  // all have left the last stage, and the part
      CopyPart<kGroup, kColumns, kThreads>(args, first + tokens - behind, 0, behind, key_head,
                                           first_column, slot, stages[kStages - 1], part);
      WaitForCopies<0>();
      __syncthreads();
      advance_part(tokens - behind, 0, behind);
    }
    if (from + tokens >= kBlock) state.Store(slot + parts.heads);
  }
}

constexpr int kWeightThreads = 128;

// Computes the weights of the whole blocks of rows. The grid is (windows, key heads).
template <int kGroup>
__global__ void __launch_bounds__(kWeightThreads)
    DeltaWeightsKernel(const __grid_constant__ DeltaRuleArgs args) {
  __shared__ alignas(16) float keys[kBlock][kDeltaHeadSize];
  __shared__ alignas(16) float queries[kBlock][kDeltaHeadSize];
  __shared__ DeltaGates gates[kBlock];
  __shared__ float products[kBlock][2][kBlock];
  const DeltaHeads& heads = args.heads;
  const RecurrentRows& rows = args.rows;
  const int64_t window = blockIdx.x;
  const int key_head = blockIdx.y;
  const int thread = static_cast<int>(threadIdx.x);
  AwaitPredecessor();
  const int64_t tokens = rows.row_first[rows.rows];
  // A whole block begins at a token if its last one is of the same row, that is, if it is seven
  // positions behind in the same sequence.
  const int64_t candidate = window * kBlock + thread % kBlock;
  bool whole = false;
  if (candidate + kBlock - 1 < tokens) {
    const int position = rows.positions[candidate];
    whole = position % kBlock == 0 &&
            rows.positions[candidate + kBlock - 1] == position + kBlock - 1 &&
            rows.slots[candidate + kBlock - 1] == rows.slots[candidate];
  }
  const unsigned found = __ballot_sync(kFullWarp, whole);
  if (found == 0) return;
  const int64_t first = window * kBlock + __ffs(static_cast<int>(found)) - 1;

  for (int item = thread; item < kBlock * 2 * kKeyChunks; item += kWeightThreads) {
    const int t = item / (2 * kKeyChunks), chunk = item % (2 * kKeyChunks);
    float(*const to)[kDeltaHeadSize] = chunk < kKeyChunks ? keys : queries;
    CopyAsync(to[t] + 4 * (chunk % kKeyChunks),
              args.operands.keys_queries +
                  ((first + t) * heads.key_heads + key_head) * 2 * kDeltaHeadSize + 4 * chunk);
  }
  for (int item = thread; item < kBlock * kGateChunks; item += kWeightThreads) {
    CopyAsync(reinterpret_cast<uint4*>(gates) + item,
              reinterpret_cast<const uint4*>(
                  args.operands.gates + (first + item / kGateChunks) * heads.key_heads + key_head) +
                  item % kGateChunks);
  }
  CommitCopies();
  WaitForCopies<0>();
  __syncthreads();
  WeighTokens<kGroup, kWeightThreads>(
      keys, queries, gates, 0, kBlock, products,
      args.weights + window * heads.value_heads + ValueHead<kGroup>(heads, key_head, 0),
      heads.interleaved ? heads.key_heads : 1);
}

// Keeps the keys and decays of the block that a row leaves begun, after all CTAs of the rule have
// read what the slot kept before. The grid is (key heads, rows).
__global__ void __launch_bounds__(kKeyChunks)
    KeepTokensKernel(const __grid_constant__ DeltaRuleArgs args) {
  const int key_head = blockIdx.x, row = blockIdx.y;
  AwaitPredecessor();
  const int64_t first = args.rows.row_first[row];
  const int begin = args.rows.row_start[row];
  const int end = begin + static_cast<int>(args.rows.row_first[row + 1] - first);
  float* const slot = args.state.data + int64_t{args.rows.row_slot[row]} * args.state.slot_stride;
  for (int position = max(begin, end / kBlock * kBlock); position < end; ++position) {
    const int64_t pair = (first + position - begin) * args.heads.key_heads + key_head;
    KeepToken(args.heads, key_head, position % kBlock,
              args.operands.keys_queries + pair * 2 * kDeltaHeadSize,
              args.operands.gates[pair].decay, slot);
  }
}

template <int kGroup, int kColumns, int kLaneColumns>
cudaError_t LaunchBlock(const DeltaRuleArgs& args, cudaStream_t stream) {
  constexpr int kThreads = kRuleThreads<kColumns, kLaneColumns>;
  const dim3 grid(kDeltaHeadSize / kColumns, args.heads.key_heads, args.rows.rows);
  if (args.rows.max_row_tokens == 1) {
    return LaunchDependent(DeltaRuleKernel<kGroup, kColumns, kLaneColumns, false>, grid, kThreads,
                           0, stream, args);
  }
  if (const int windows = DeltaWindows(args.rows); windows > 0) {
    const cudaError_t error =
        LaunchDependent(DeltaWeightsKernel<kGroup>, dim3(windows, args.heads.key_heads),
                        kWeightThreads, 0, stream, args);
    if (error != cudaSuccess) return error;
  }
  // The CTAs of a few rows are as many as SMs and run for long. Were they set up while the kernel
  // before still ends, those of an SM that is free first would share it, and others would be idle.
  DeltaRuleKernel<kGroup, kColumns, kLaneColumns, true><<<grid, kThreads, 0, stream>>>(args);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  return LaunchDependent(KeepTokensKernel, dim3(args.heads.key_heads, args.rows.rows), kKeyChunks,
                         0, stream, args);
}

template <int kGroup>
cudaError_t LaunchGroup(const DeltaRuleArgs& args, const DeltaBlock& block, cudaStream_t stream) {
  const auto is = [&](int columns, int lane_columns) {
    return block.columns == columns && block.lane_columns == lane_columns;
  };
  if (is(8, 1)) return LaunchBlock<kGroup, 8, 1>(args, stream);
  if (is(16, 1)) return LaunchBlock<kGroup, 16, 1>(args, stream);
  if (is(32, 1)) return LaunchBlock<kGroup, 32, 1>(args, stream);
  if constexpr (kGroup <= kMaxPairedGroup) {
    if (is(32, 2)) return LaunchBlock<kGroup, 32, 2>(args, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace
}  // namespace recurrent

cudaError_t LaunchDeltaRule(const DeltaRuleArgs& args, cudaStream_t stream) {
  if (!IsValid(args.heads) || !IsValid(args.rows) || !IsValid(args.operands) ||
      !IsValid(args.state, args.heads) || args.out == nullptr || !IsAligned16(args.out)) {
    return cudaErrorInvalidValue;
  }
  if (DeltaWindows(args.rows) > 0 && (args.weights == nullptr || !IsAligned16(args.weights))) {
    return cudaErrorInvalidValue;
  }
  const DeltaBlock block = args.block.value_or(DefaultDeltaBlock(args.heads, args.rows));
  if (!IsBlockFor(block, args.heads)) return cudaErrorInvalidValue;
  if (args.rows.rows == 0 || args.rows.max_tokens == 0) return cudaSuccess;
  switch (args.heads.group()) {
    case 1:
      return recurrent::LaunchGroup<1>(args, block, stream);
    case 2:
      return recurrent::LaunchGroup<2>(args, block, stream);
    case 3:
      return recurrent::LaunchGroup<3>(args, block, stream);
    default:
      return recurrent::LaunchGroup<4>(args, block, stream);
  }
}

}  // namespace millrace::kernels
