#include "kernels/recurrent/delta_rule.h"

#include "kernels/arguments.h"
#include "kernels/device_util.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels {
namespace {

// Eight neighbouring lanes share a column: lane l has keys 32 j + 4 l + i, so that eight lanes read
// 128 neighbouring bytes of a column, of a key and of a query.
constexpr int kColumnLanes = 8;
constexpr int kWarpColumns = kWarpSize / kColumnLanes;  // times a lane's columns
constexpr int kLaneKeys = kDeltaHeadSize / kColumnLanes;
constexpr int kQuads = kLaneKeys / 4;

// Tokens whose operands are copied to shared memory together, and how many such stages there are.
constexpr int kStageTokens = 8;
constexpr int kStages = 3;

// A token's operands in shared memory, in the order of a CTA's copies.
template <int kGroup, int kColumns>
struct Operands {
  alignas(16) float key[kDeltaHeadSize];
  float query[kDeltaHeadSize];
  float values[kGroup][kColumns];
  DeltaGates gates;
};

// Where 16 bytes of a token's operands come from.
struct Source {
  const float* from;
  int64_t stride;  // floats between tokens
};

template <int kGroup, int kColumns>
__device__ Source SourceOf(const DeltaRuleArgs& args, int chunk, int64_t token, int key_head,
                           int column) {
  constexpr int kPairChunks = 2 * kDeltaHeadSize / 4, kValueChunks = kColumns / 4;
  constexpr int kGateFloats = sizeof(DeltaGates) / sizeof(float);
  const DeltaHeads& heads = args.heads;
  if (chunk < kPairChunks) {
    const int64_t stride = int64_t{heads.key_heads} * 2 * kDeltaHeadSize;
    return {args.operands.keys_queries + token * stride + key_head * 2 * kDeltaHeadSize + 4 * chunk,
            stride};
  }
  chunk -= kPairChunks;
  if (chunk < kGroup * kValueChunks) {
    const int head = heads.ValueHead(key_head, chunk / kValueChunks);
    return {args.operands.values + token * heads.value_width() + head * kDeltaHeadSize + column +
                4 * (chunk % kValueChunks),
            heads.value_width()};
  }
  chunk -= kGroup * kValueChunks;
  const int64_t stride = int64_t{heads.key_heads} * kGateFloats;
  return {reinterpret_cast<const float*>(args.operands.gates) + token * stride +
              key_head * kGateFloats + 4 * chunk,
          stride};
}

// Returns `condition ? a : b` without a branch, which would part the lanes before a shuffle.
__device__ inline float Select(bool condition, float a, float b) {
  float selected;
  asm("{\n.reg .pred p;\nsetp.ne.s32 p, %3, 0;\nselp.f32 %0, %1, %2, p;\n}\n"
      : "=f"(selected)
      : "f"(a), "f"(b), "r"(static_cast<int>(condition)));
  return selected;
}

// The number of sums that a lane begins to scatter: a power of two.
constexpr int ScatteredSums(int sums) { return sums <= 2 ? sums : sums <= 4 ? 4 : 8; }

// Adds each of the sums over the eight lanes of a column, in the order of AddOverLanes. Lane l
// returns the sum that ScatteredIndex tells: with each exchange a lane keeps half of its sums.
template <int kSums>
__device__ float AddScattered(float (&sums)[kSums], int lane) {
  int left = kSums;
#pragma unroll
  for (int distance = kColumnLanes / 2; distance > 0; distance /= 2) {
    if (left == 1) {
      sums[0] = __fadd_rn(sums[0], __shfl_xor_sync(kFullWarp, sums[0], distance));
      continue;
    }
    left /= 2;
    const bool upper = (lane & distance) != 0;
#pragma unroll
    for (int i = 0; i < left; ++i) {
      const float given = Select(upper, sums[i], sums[i + left]);
      const float kept = Select(upper, sums[i + left], sums[i]);
      sums[i] = __fadd_rn(kept, __shfl_xor_sync(kFullWarp, given, distance));
    }
  }
  return sums[0];
}

template <int kSums>
__device__ int ScatteredIndex(int lane) {
  return lane / (kColumnLanes / kSums);
}

// Adds over the eight lanes of a column; each lane gets the same bits.
__device__ inline float AddOverLanes(float sum) {
#pragma unroll
  for (int distance = kColumnLanes / 2; distance > 0; distance /= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(kFullWarp, sum, distance));
  }
  return sum;
}

// The columns of a lane: kLaneColumns neighbouring ones of each of kGroup value heads.
template <int kGroup, int kLaneColumns>
class LaneState {
 public:
  static constexpr int kSums = kGroup * kLaneColumns;
  static constexpr int kScattered = ScatteredSums(kSums);

  // `column` is the lane's first column, `lane` its number among the column's eight.
  __device__ LaneState(const DeltaHeads& heads, int key_head, int column, int lane)
      : head_(heads.ValueHead(key_head, 0)),
        head_step_(heads.interleaved ? heads.key_heads : 1),
        at_(ConvolutionFloats(heads) + (int64_t{head_} * kDeltaHeadSize + column) * kDeltaHeadSize +
            4 * lane),
        lane_(lane) {}

  // Begins with zeros.
  __device__ void Clear() {
#pragma unroll
    for (auto& column : state_) {
#pragma unroll
      for (float& element : column) element = 0;
    }
  }

  __device__ void Load(const float* slot) {
#pragma unroll
    for (int x = 0; x < kSums; ++x) {
#pragma unroll
      for (int j = 0; j < kQuads; ++j) {
        const float4 quad = *reinterpret_cast<const float4*>(slot + Offset(x, j));
        state_[x][4 * j] = quad.x, state_[x][4 * j + 1] = quad.y;
        state_[x][4 * j + 2] = quad.z, state_[x][4 * j + 3] = quad.w;
      }
    }
  }

  __device__ void Store(float* slot) const {
#pragma unroll
    for (int x = 0; x < kSums; ++x) {
#pragma unroll
      for (int j = 0; j < kQuads; ++j) {
        *reinterpret_cast<float4*>(slot + Offset(x, j)) = make_float4(
            state_[x][4 * j], state_[x][4 * j + 1], state_[x][4 * j + 2], state_[x][4 * j + 3]);
      }
    }
  }

  // Says whether the lane has an output, and its column and value head if it does.
  __device__ bool HasOutput() const {
    return lane_ % (kColumnLanes / kScattered) == 0 && OutputIndex() < kSums;
  }
  __device__ int OutputHead() const { return head_ + OutputIndex() / kLaneColumns * head_step_; }
  __device__ int OutputColumn() const { return OutputIndex() % kLaneColumns; }

  // Advances by one token and returns the lane's output. `column` is the lane's first column in the
  // operands.
  template <int kColumns>
  __device__ float Advance(const Operands<kGroup, kColumns>& token, int column) {
    float key[kLaneKeys], query[kLaneKeys];
    LoadKeys(token.key, key);
    LoadKeys(token.query, query);
    float of_key[kSums], of_query[kScattered];
#pragma unroll
    for (int x = 0; x < kSums; ++x) of_key[x] = __fmul_rn(state_[x][0], key[0]);
#pragma unroll
    for (int r = 1; r < kLaneKeys; ++r) {
#pragma unroll
      for (int x = 0; x < kSums; ++x) of_key[x] = __fmaf_rn(state_[x][r], key[r], of_key[x]);
    }
#pragma unroll
    for (int x = 0; x < kSums; ++x) of_key[x] = AddOverLanes(of_key[x]);
#pragma unroll
    for (int x = 0; x < kScattered; ++x) {
      of_query[x] = x < kSums ? __fmul_rn(state_[x][0], query[0]) : 0;
    }
#pragma unroll
    for (int r = 1; r < kLaneKeys; ++r) {
#pragma unroll
      for (int x = 0; x < kSums; ++x) {
        of_query[x] = __fmaf_rn(state_[x][r], query[r], of_query[x]);
      }
    }
    const float own = AddScattered(of_query, lane_);

    float own_decay = 0, own_delta = 0;
#pragma unroll
    for (int x = 0; x < kSums; ++x) {
      const int group = x / kLaneColumns;
      const float decay = token.gates.decay[group];
      const float value = token.values[group][column + x % kLaneColumns];
      const float delta = __fmul_rn(token.gates.beta[group], __fmaf_rn(-decay, of_key[x], value));
#pragma unroll
      for (int r = 0; r < kLaneKeys; ++r) {
        state_[x][r] = __fmaf_rn(key[r], delta, __fmul_rn(decay, state_[x][r]));
      }
      own_decay = x == 0 ? decay : Select(OutputIndex() == x, decay, own_decay);
      own_delta = x == 0 ? delta : Select(OutputIndex() == x, delta, own_delta);
    }
    return __fmaf_rn(own_decay, own, __fmul_rn(token.gates.query_key, own_delta));
  }

 private:
  __device__ int OutputIndex() const { return ScatteredIndex<kScattered>(lane_); }

  __device__ int64_t Offset(int x, int j) const {
    const int64_t rows = int64_t{x / kLaneColumns} * head_step_ * kDeltaHeadSize;
    return at_ + (rows + x % kLaneColumns) * kDeltaHeadSize + 32 * j;
  }

  __device__ void LoadKeys(const float (&from)[kDeltaHeadSize], float (&to)[kLaneKeys]) const {
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      const float4 quad = *reinterpret_cast<const float4*>(from + 32 * j + 4 * lane_);
      to[4 * j] = quad.x, to[4 * j + 1] = quad.y, to[4 * j + 2] = quad.z, to[4 * j + 3] = quad.w;
    }
  }

  const int head_;  // the first value head of the key head, and how far the next one is
  const int head_step_;
  const int64_t at_;  // the lane's first element in a slot
  const int lane_;
  float state_[kSums][kLaneKeys];
};

template <int kColumns, int kLaneColumns>
constexpr int kRuleThreads = kColumns / (kWarpColumns * kLaneColumns) * kWarpSize;

// The grid is (blocks of columns, key heads, rows). A CTA runs through the tokens of a row; its
// operands arrive by asynchronous copies two stages ahead.
template <int kGroup, int kColumns, int kLaneColumns>
__global__ void __launch_bounds__(kRuleThreads<kColumns, kLaneColumns>)
    DeltaRuleKernel(const __grid_constant__ DeltaRuleArgs args) {
  using TokenOperands = Operands<kGroup, kColumns>;
  constexpr int kThreads = kRuleThreads<kColumns, kLaneColumns>;
  constexpr int kChunks = sizeof(TokenOperands) / 16;
  constexpr int kThreadChunks = CeilDiv(kChunks, kThreads);
  __shared__ TokenOperands stages[kStages][kStageTokens];
  const int lane = threadIdx.x % kColumnLanes;
  const int column = static_cast<int>(threadIdx.x) / kColumnLanes * kLaneColumns;  // of the CTA
  const int first_column = blockIdx.x * kColumns;
  const int key_head = blockIdx.y, row = blockIdx.z;
  AwaitPredecessor();
  const int64_t first = args.rows.row_first[row];
  const int tokens = static_cast<int>(args.rows.row_first[row + 1] - first);
  const bool begins = args.rows.row_start[row] == 0;
  const int64_t slot_index = args.rows.row_slot[row];
  if (tokens <= 0) return;

  Source sources[kThreadChunks];
#pragma unroll
  for (int i = 0; i < kThreadChunks; ++i) {
    const int chunk = i * kThreads + static_cast<int>(threadIdx.x);
    sources[i] =
        SourceOf<kGroup, kColumns>(args, min(chunk, kChunks - 1), first, key_head, first_column);
  }
  // Begins the copies of the next stage, whose first token is `at`.
  const auto copy_stage = [&](int stage, int at) {
#pragma unroll
    for (int i = 0; i < kThreadChunks; ++i) {
      const int chunk = i * kThreads + static_cast<int>(threadIdx.x);
      if (chunk >= kChunks) continue;
#pragma unroll
      for (int t = 0; t < kStageTokens; ++t) {
        if (at + t >= tokens) break;
        CopyAsync(reinterpret_cast<uint4*>(&stages[stage][t]) + chunk, sources[i].from);
        sources[i].from += sources[i].stride;
      }
    }
    CommitCopies();
  };
  int to_copy = 0;  // the stage that is copied next
#pragma unroll
  for (; to_copy < kStages - 1; ++to_copy) copy_stage(to_copy, to_copy * kStageTokens);

  float* const slot = args.state.data + slot_index * args.state.slot_stride;
  LaneState<kGroup, kLaneColumns> state(args.heads, key_head, first_column + column, lane);
  if (begins) {
    state.Clear();
  } else {
    state.Load(slot);
  }
  float* out = args.out + first * args.heads.value_width() + state.OutputHead() * kDeltaHeadSize +
               first_column + column + state.OutputColumn();

  int stage = 0;
  for (int at = 0; at < tokens; at += kStageTokens) {
    WaitForCopies<kStages - 2>();
    __syncthreads();  // the stage is there for all, and all have left the one before it
    copy_stage(to_copy, at + (kStages - 1) * kStageTokens);
    to_copy = to_copy == kStages - 1 ? 0 : to_copy + 1;
    const int count = min(kStageTokens, tokens - at);
#pragma unroll 2
    for (int t = 0; t < count; ++t) {
      const float value = state.Advance(stages[stage][t], column);
      if (state.HasOutput()) *out = value;
      out += args.heads.value_width();
    }
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }
  state.Store(slot);
}

template <int kGroup, int kColumns, int kLaneColumns>
cudaError_t LaunchBlock(const DeltaRuleArgs& args, cudaStream_t stream) {
  const dim3 grid(kDeltaHeadSize / kColumns, args.heads.key_heads, args.rows.rows);
  return LaunchDependent(DeltaRuleKernel<kGroup, kColumns, kLaneColumns>, grid,
                         kRuleThreads<kColumns, kLaneColumns>, 0, stream, args);
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
