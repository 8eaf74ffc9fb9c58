#include "kernels/recurrent/delta_rule.h"

#include "kernels/arguments.h"
#include "kernels/device_util.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels {
namespace {

constexpr int kBlock = kDeltaBlockTokens;

// Eight neighbouring lanes share a column: lane l has keys 32 j + 4 l + i, so that eight lanes read
// 128 neighbouring bytes of a column, of a key and of a query.
constexpr int kColumnLanes = 8;
constexpr int kWarpColumns = kWarpSize / kColumnLanes;  // times a lane's columns
constexpr int kLaneKeys = kDeltaHeadSize / kColumnLanes;
constexpr int kQuads = kLaneKeys / 4;
static_assert(kBlock == kColumnLanes, "a lane of a column has the sums of one token of a block");

// Sizes in copies of 16 bytes.
constexpr int kKeyChunks = kDeltaHeadSize / 4;
constexpr int kGateChunks = sizeof(DeltaGates) / 16;
constexpr int kWeightChunks = sizeof(DeltaWeights) / 16;

// A block's operands in shared memory. The weights are copied for a whole block, and computed here
// for the part of one.
template <int kGroup, int kColumns>
struct Stage {
  alignas(16) float keys[kBlock][kDeltaHeadSize];
  float queries[kBlock][kDeltaHeadSize];
  float values[kBlock][kGroup][kColumns];
  DeltaWeights weights[kGroup];
};

// The operands that only a block computed in parts needs.
template <int kGroup, int kColumns>
struct Part {
  alignas(16) float deltas[kBlock][kGroup][kColumns];
  DeltaGates gates[kBlock];  // of a token of an earlier row its decays alone
  float products[kBlock][2][kBlock];
};

// DeltaHeads::ValueHead without its division.
template <int kGroup>
__device__ int ValueHead(const DeltaHeads& heads, int key_head, int i) {
  return heads.interleaved ? i * heads.key_heads + key_head : key_head * kGroup + i;
}

__device__ void LoadKeys(const float* from, int lane, float (&to)[kLaneKeys]) {
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    const float4 quad = *reinterpret_cast<const float4*>(from + 32 * j + 4 * lane);
    to[4 * j] = quad.x, to[4 * j + 1] = quad.y, to[4 * j + 2] = quad.z, to[4 * j + 3] = quad.w;
  }
}

// Returns a lane's chain of a sum over keys.
__device__ float Chain(const float (&a)[kLaneKeys], const float (&b)[kLaneKeys]) {
  float sum = __fmul_rn(a[0], b[0]);
#pragma unroll
  for (int r = 1; r < kLaneKeys; ++r) sum = __fmaf_rn(a[r], b[r], sum);
  return sum;
}

// Adds the chains of the eight lanes of a column; each lane gets the same bits.
__device__ float AddOverLanes(float sum) {
#pragma unroll
  for (int distance = kColumnLanes / 2; distance > 0; distance /= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(kFullWarp, sum, distance));
  }
  return sum;
}

// Computes the weights of tokens [from, to) of a block for the value heads of a key head; those of
// the i-th go to weights[i * step]. `keys`, `queries` and `gates` have the block's tokens before
// `to`; of those before `from` only keys and decays are read. Called by whole CTAs; `products` is
// shared memory. The caller synchronizes before it reads weights.
template <int kGroup, int kThreads>
__device__ void WeighTokens(const float (*keys)[kDeltaHeadSize],
                            const float (*queries)[kDeltaHeadSize], const DeltaGates* gates,
                            int from, int to, float (*products)[2][kBlock], DeltaWeights* weights,
                            int64_t step) {
  constexpr int kThreadGroups = kThreads / kColumnLanes;
  const int group = static_cast<int>(threadIdx.x) / kColumnLanes;
  const int lane = threadIdx.x % kColumnLanes;
  // Four groups of a warp take four neighbouring keys, so that a warp leaves out what it need not
  // compute as one.
  for (int item = group; item < (to - from) * 2 * kBlock; item += kThreadGroups) {
    const int t = from + item / (2 * kBlock), which = item / kBlock % 2, j = item % kBlock;
    if (j / kWarpColumns * kWarpColumns >= t) continue;
    float key[kLaneKeys], other[kLaneKeys];
    LoadKeys(keys[j], lane, key);
    LoadKeys(which == 0 ? keys[t] : queries[t], lane, other);
    const float product = AddOverLanes(Chain(key, other));
    if (lane == 0) products[t][which][j] = product;
  }
  __syncthreads();
  for (int item = group; item < (to - from) * kGroup; item += kThreadGroups) {
    const int t = from + item / kGroup, i = item % kGroup, j = lane;
    float decay = 1;  // L(t, j)
    for (int s = t; s > j; --s) decay = __fmul_rn(decay, gates[s].decay[i]);
    const float beta = gates[t].beta[i];
    DeltaWeights& to_write = weights[i * step];
    if (j < kBlock - 1) {
      to_write.deltas[j / 4][t][j % 4] =
          j < t ? -__fmul_rn(beta, __fmul_rn(decay, products[t][0][j])) : 0;
    }
    const float product = j < t ? products[t][1][j] : gates[t].query_key;
    to_write.outputs[j / 4][t][j % 4] = j <= t ? __fmul_rn(decay, product) : 0;
    if (t == kBlock - 1) to_write.fold[j] = decay;
    if (j == 0) {
      to_write.deltas[1][t][3] = __fmul_rn(decay, gates[0].decay[i]);
      to_write.beta[t] = beta;
    }
  }
}

// The columns of a lane: kLaneColumns neighbouring ones of each of kGroup value heads.
template <int kGroup, int kColumns, int kLaneColumns>
class LaneState {
 public:
  using Operands = Stage<kGroup, kColumns>;
  using BlockPart = Part<kGroup, kColumns>;

  // `column` is the lane's first column in the CTA, whose first is `first_column`; `lane` is its
  // number among the column's eight.
  __device__ LaneState(const DeltaHeads& heads, int key_head, int first_column, int column,
                       int lane)
      : width_(heads.value_width()),
        head_step_((heads.interleaved ? heads.key_heads : 1) * kDeltaHeadSize),
        first_(ValueHead<kGroup>(heads, key_head, 0) * kDeltaHeadSize + first_column + column),
        column_(column),
        lane_(lane) {}

  // Begins with zeros.
  __device__ void Clear() {
#pragma unroll
    for (auto& column : state_) {
#pragma unroll
      for (float& element : column) element = 0;
    }
  }

  // `heads` is the states of all value heads.
  __device__ void Load(const float* heads) {
#pragma unroll
    for (int x = 0; x < kSums; ++x) LoadKeys(heads + At(x) * kDeltaHeadSize, lane_, state_[x]);
  }

  __device__ void Store(float* heads) const {
#pragma unroll
    for (int x = 0; x < kSums; ++x) {
#pragma unroll
      for (int j = 0; j < kQuads; ++j) {
        *reinterpret_cast<float4*>(heads + At(x) * kDeltaHeadSize + 32 * j + 4 * lane_) =
            make_float4(state_[x][4 * j], state_[x][4 * j + 1], state_[x][4 * j + 2],
                        state_[x][4 * j + 3]);
      }
    }
  }

  // Computes a whole block. `out` is the row of its first token in the outputs.
  //
  // A sum over keys is scattered over the lanes without a choice: lane l computes its chain of
  // token i ^ l as the i-th, so that at each exchange it keeps the lower half of its chains and its
  // partner's upper half has the same tokens. At the end lane l has the sums of token l.
  __device__ void AdvanceBlock(const Operands& block, float* out) {
    float of_key[kBlock][kSums], of_query[kBlock][kSums];
#pragma unroll
    for (int i = 0; i < kBlock; ++i) {
      float key[kLaneKeys], query[kLaneKeys];
      LoadKeys(block.keys[i ^ lane_], lane_, key);
      LoadKeys(block.queries[i ^ lane_], lane_, query);
#pragma unroll
      for (int x = 0; x < kSums; ++x) {
        of_key[i][x] = Chain(state_[x], key);
        of_query[i][x] = Chain(state_[x], query);
      }
    }
    Scatter(of_key);
    Scatter(of_query);

    float deltas[kBlock][kSums];
#pragma unroll
    for (int x = 0; x < kSums; ++x) {
      const DeltaWeights& weights = block.weights[x / kLaneColumns];
      const float value = block.values[lane_][x / kLaneColumns][column_ + x % kLaneColumns];
      const float start = weights.start(lane_);
      const float own = __fmul_rn(weights.beta[lane_], __fmaf_rn(-start, of_key[0][x], value));
#pragma unroll
      for (int t = 0; t < kBlock; ++t) {
        deltas[t][x] = __shfl_sync(kFullWarp, own, t, kColumnLanes);
      }
#pragma unroll
      for (int t = 1; t < kBlock; ++t) {
        float of_token[kBlock];
        Load4(weights.deltas[0][t], of_token);
        if (t > 4) Load4(weights.deltas[1][t], of_token + 4);
#pragma unroll
        for (int j = 0; j < t; ++j)
          deltas[t][x] = __fmaf_rn(of_token[j], deltas[j][x], deltas[t][x]);
      }
      float of_token[kBlock];
      Load4(weights.outputs[0][lane_], of_token);
      Load4(weights.outputs[1][lane_], of_token + 4);
      float sum = __fmul_rn(start, of_query[0][x]);
#pragma unroll
      for (int j = 0; j < kBlock; ++j) {
        if (j <= lane_) sum = __fmaf_rn(of_token[j], deltas[j][x], sum);
      }
      out[lane_ * width_ + At(x)] = sum;
    }
    Fold(block, [&](int j, int x) { return deltas[j][x]; });
  }

  // Computes token t of a block of which `part` has the deltas before it. `out` is its row in the
  // outputs; its deltas go to `part` and, unless that is null, to the row `kept` of a slot.
  __device__ void AdvanceToken(const Operands& block, BlockPart& part, int t, float* out,
                               float* kept) const {
    float key[kLaneKeys], query[kLaneKeys];
    LoadKeys(block.keys[t], lane_, key);
    LoadKeys(block.queries[t], lane_, query);
    float of_key[kSums], of_query[kSums];
#pragma unroll
    for (int x = 0; x < kSums; ++x) {
      of_key[x] = Chain(state_[x], key);
      of_query[x] = Chain(state_[x], query);
    }
    float delta[kSums], sum[kSums];
#pragma unroll
    for (int x = 0; x < kSums; ++x) {
      const DeltaWeights& weights = block.weights[x / kLaneColumns];
      const float start = weights.start(t);
      const float value = block.values[t][x / kLaneColumns][column_ + x % kLaneColumns];
      delta[x] = __fmul_rn(weights.beta[t], __fmaf_rn(-start, AddOverLanes(of_key[x]), value));
      sum[x] = __fmul_rn(start, AddOverLanes(of_query[x]));
    }
#pragma unroll 1
    for (int j = 0; j < t; ++j) {
#pragma unroll
      for (int x = 0; x < kSums; ++x) {
        const DeltaWeights& weights = block.weights[x / kLaneColumns];
        const float before = part.deltas[j][x / kLaneColumns][column_ + x % kLaneColumns];
        delta[x] = __fmaf_rn(weights.delta(t, j), before, delta[x]);
        sum[x] = __fmaf_rn(weights.output(t, j), before, sum[x]);
      }
    }
#pragma unroll
    for (int x = 0; x < kSums; ++x) {
      const float output = block.weights[x / kLaneColumns].output(t, t);
      if (lane_ == 0) {
        part.deltas[t][x / kLaneColumns][column_ + x % kLaneColumns] = delta[x];
        out[At(x)] = __fmaf_rn(output, delta[x], sum[x]);
        if (kept != nullptr) kept[At(x)] = delta[x];
      }
    }
    __syncwarp();  // the column's other lanes read the deltas with the next token
  }

  // Ends a block that was computed in parts.
  __device__ void EndBlock(const Operands& block, const BlockPart& part) {
    Fold(block, [&](int j, int x) {
      return part.deltas[j][x / kLaneColumns][column_ + x % kLaneColumns];
    });
  }

 private:
  static constexpr int kSums = kGroup * kLaneColumns;

  // Returns the number of a column among all value heads' columns.
  __device__ int64_t At(int x) const {
    return first_ + x / kLaneColumns * head_step_ + x % kLaneColumns;
  }

  __device__ static void Load4(const float (&from)[4], float* to) {
    const float4 quad = *reinterpret_cast<const float4*>(from);
    to[0] = quad.x, to[1] = quad.y, to[2] = quad.z, to[3] = quad.w;
  }

  __device__ static void Scatter(float (&chains)[kBlock][kSums]) {
#pragma unroll
    for (int distance = kColumnLanes / 2; distance > 0; distance /= 2) {
#pragma unroll
      for (int i = 0; i < distance; ++i) {
#pragma unroll
        for (int x = 0; x < kSums; ++x) {
          chains[i][x] = __fadd_rn(chains[i][x],
                                   __shfl_xor_sync(kFullWarp, chains[i + distance][x], distance));
        }
      }
    }
  }

  // Advances the state by a block whose deltas `delta` returns.
  template <typename Delta>
  __device__ void Fold(const Operands& block, Delta delta) {
#pragma unroll
    for (int x = 0; x < kSums; ++x) {
      const float decay = block.weights[x / kLaneColumns].start(kBlock - 1);
#pragma unroll
      for (float& element : state_[x]) element = __fmul_rn(decay, element);
    }
#pragma unroll
    for (int j = 0; j < kBlock; ++j) {
      float key[kLaneKeys];
      LoadKeys(block.keys[j], lane_, key);
#pragma unroll
      for (int x = 0; x < kSums; ++x) {
        const float left = __fmul_rn(block.weights[x / kLaneColumns].fold[j], delta(j, x));
#pragma unroll
        for (int r = 0; r < kLaneKeys; ++r) {
          state_[x][r] = __fmaf_rn(key[r], left, state_[x][r]);
        }
      }
    }
  }

  const int64_t width_;  // columns of all value heads
  const int head_step_;  // columns from a value head of the key head to the next
  const int first_;      // the lane's first column among all
  const int column_;     // and in the CTA
  const int lane_;
  float state_[kSums][kLaneKeys];
};

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
  const cudaError_t error = LaunchDependent(DeltaRuleKernel<kGroup, kColumns, kLaneColumns, true>,
                                            grid, kThreads, 0, stream, args);
  if (error != cudaSuccess) return error;
  return LaunchDependent(KeepTokensKernel, dim3(args.heads.key_heads, args.rows.rows), kKeyChunks,
                         0, stream, args);
}

template <int kGroup>
cudaError_t LaunchGroup(const DeltaRuleArgs& args, cudaStream_t stream) {
  const auto is = [&](int columns, int lane_columns) {
    return args.block.columns == columns && args.block.lane_columns == lane_columns;
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

cudaError_t LaunchDeltaRule(const DeltaRuleArgs& args, cudaStream_t stream) {
  if (!IsValid(args.heads) || !IsValid(args.rows) || !IsValid(args.operands) ||
      !IsValid(args.state, args.heads) || args.out == nullptr || !IsAligned16(args.out)) {
    return cudaErrorInvalidValue;
  }
  if (DeltaWindows(args.rows) > 0 && (args.weights == nullptr || !IsAligned16(args.weights))) {
    return cudaErrorInvalidValue;
  }
  if (!IsBlockFor(args.block, args.heads)) return cudaErrorInvalidValue;
  if (args.rows.rows == 0 || args.rows.max_tokens == 0) return cudaSuccess;
  switch (args.heads.group()) {
    case 1:
      return LaunchGroup<1>(args, stream);
    case 2:
      return LaunchGroup<2>(args, stream);
    case 3:
      return LaunchGroup<3>(args, stream);
    default:
      return LaunchGroup<4>(args, stream);
  }
}

}  // namespace millrace::kernels
