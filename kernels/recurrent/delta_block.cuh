// A block of the gated delta rule (delta_rule.h): its operands in shared memory, the factors of its
// tokens, and the columns of a state that a lane keeps in registers.
#ifndef MILLRACE_KERNELS_RECURRENT_DELTA_BLOCK_CUH_
#define MILLRACE_KERNELS_RECURRENT_DELTA_BLOCK_CUH_

#include <cstdint>

#include "kernels/device_util.cuh"
#include "kernels/recurrent/delta_types.h"

namespace millrace::kernels::recurrent {

inline constexpr int kBlock = kDeltaBlockTokens;

// Eight neighbouring lanes share a column: lane l has keys 32 j + 4 l + i, so that eight lanes read
// 128 neighbouring bytes of a column, of a key and of a query.
inline constexpr int kColumnLanes = 8;
inline constexpr int kWarpColumns = kWarpSize / kColumnLanes;  // times a lane's columns
inline constexpr int kLaneKeys = kDeltaHeadSize / kColumnLanes;
inline constexpr int kQuads = kLaneKeys / 4;
static_assert(kBlock == kColumnLanes, "a lane of a column has the sums of one token of a block");

// Sizes in copies of 16 bytes.
inline constexpr int kKeyChunks = kDeltaHeadSize / 4;
inline constexpr int kGateChunks = sizeof(DeltaGates) / 16;
inline constexpr int kWeightChunks = sizeof(DeltaWeights) / 16;

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

__device__ inline void LoadKeys(const float* from, int lane, float (&to)[kLaneKeys]) {
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    const float4 quad = *reinterpret_cast<const float4*>(from + 32 * j + 4 * lane);
    to[4 * j] = quad.x, to[4 * j + 1] = quad.y, to[4 * j + 2] = quad.z, to[4 * j + 3] = quad.w;
  }
}

// Returns a lane's chain of a sum over keys.
__device__ inline float Chain(const float (&a)[kLaneKeys], const float (&b)[kLaneKeys]) {
  float sum = __fmul_rn(a[0], b[0]);
#pragma unroll
  for (int r = 1; r < kLaneKeys; ++r) sum = __fmaf_rn(a[r], b[r], sum);
  return sum;
}

// Adds the chains of the eight lanes of a column; each lane gets the same bits.
__device__ inline float AddOverLanes(float sum) {
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

}  // namespace millrace::kernels::recurrent

#endif  // MILLRACE_KERNELS_RECURRENT_DELTA_BLOCK_CUH_
