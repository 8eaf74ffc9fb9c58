#include "kernels/recurrent/mamba2_scan.h"

#include "kernels/arguments.h"
#include "kernels/device_util.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels {
namespace {

// Sixteen neighbouring lanes share a row of a state, the elements of one value: lane l has elements
// 64 j + 4 l + i, so that they read 256 neighbouring bytes of a row, of b and of c. A lane has four
// neighbouring rows, which one load of b and c serves.
constexpr int kRowLanes = 16;
constexpr int kLaneRows = 4;
constexpr int kWarpRows = kWarpSize / kRowLanes * kLaneRows;
constexpr int kLineStates = 4 * kRowLanes;

// Tokens whose sums are scattered over the lanes of a row together, so that each has one of them.
constexpr int kSumTokens = kRowLanes / kLaneRows;

template <int kValues>
constexpr int kScanThreads = kValues / kWarpRows* kWarpSize;

// The operands of consecutive tokens in shared memory, a stage of a CTA's way through a row.
template <int kState, int kValues>
struct Operands {
  static constexpr int kTokens = 1024 / kState;  // three stages fit into 48 KiB
  alignas(16) float b[kTokens][kState];
  float c[kTokens][kState];
  float x[kTokens][kValues];
  Mamba2Gates gates[kTokens];
};

// Copies 8 bytes to shared memory, as CopyAsync does 16.
__device__ void CopyGates(Mamba2Gates* shared, const Mamba2Gates* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(SharedAddress(shared)), "l"(from)
               : "memory");
}

// Returns the sums over the 16 lanes of a row, the same bits in each lane.
__device__ float AddOverLanes(float sum) {
#pragma unroll
  for (int distance = kRowLanes / 2; distance > 0; distance /= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(kFullWarp, sum, distance));
  }
  return sum;
}

// Makes sums[0] of lane l the sum over the lanes of their sums[l], with the bits of AddOverLanes:
// at each distance a lane keeps the half of its sums that its own number is in, and adds its
// partner's.
template <int kHalf = kRowLanes / 2>
__device__ void Scatter(int lane, float (&sums)[kRowLanes]) {
  const bool upper = (lane & kHalf) != 0;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float kept = upper ? sums[i + kHalf] : sums[i];
    const float given = upper ? sums[i] : sums[i + kHalf];
    sums[i] = __fadd_rn(kept, __shfl_xor_sync(kFullWarp, given, kHalf));
  }
  if constexpr (kHalf > 1) Scatter<kHalf / 2>(lane, sums);
}

__device__ inline void Load4(const float* from, float* to) {
  const float4 quad = *reinterpret_cast<const float4*>(from);
  to[0] = quad.x, to[1] = quad.y, to[2] = quad.z, to[3] = quad.w;
}

// The rows of a lane.
template <int kState>
class LaneRows {
 public:
  // `lane` is its number among the sixteen of a row.
  __device__ explicit LaneRows(int lane) : lane_(lane) {}

  // Begins with zeros.
  __device__ void Clear() {
#pragma unroll
    for (auto& row : state_) {
#pragma unroll
      for (float& element : row) element = 0;
    }
  }

  // `rows` are the lane's, [kLaneRows][kState].
  __device__ void Load(const float* rows) {
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) LoadLane(rows + r * kState, state_[r]);
  }

  __device__ void Store(float* rows) const {
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
#pragma unroll
      for (int j = 0; j < kLines; ++j) {
        *reinterpret_cast<float4*>(rows + r * kState + kLineStates * j + 4 * lane_) = make_float4(
            state_[r][4 * j], state_[r][4 * j + 1], state_[r][4 * j + 2], state_[r][4 * j + 3]);
      }
    }
  }

  // Takes a token, and makes the lane's chains of its sums.
  __device__ void Advance(const float* b, const float* c, const float (&x)[kLaneRows],
                          const Mamba2Gates& gates, float* sums) {
    float b_lane[kElements], c_lane[kElements];
    LoadLane(b, b_lane);
    LoadLane(c, c_lane);
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
      const float input = __fmul_rn(gates.step, x[r]);
      float sum = 0;
#pragma unroll
      for (int k = 0; k < kElements; ++k) {
        float& element = state_[r][k];
        element = __fmaf_rn(input, b_lane[k], __fmul_rn(gates.decay, element));
        sum = k == 0 ? __fmul_rn(element, c_lane[0]) : __fmaf_rn(element, c_lane[k], sum);
      }
      sums[r] = sum;
    }
  }

 private:
  static constexpr int kLines = kState / kLineStates;
  static constexpr int kElements = 4 * kLines;

  __device__ void LoadLane(const float* from, float (&to)[kElements]) const {
#pragma unroll
    for (int j = 0; j < kLines; ++j) Load4(from + kLineStates * j + 4 * lane_, to + 4 * j);
  }

  const int lane_;
  float state_[kLaneRows][kElements];
};

// Copies the operands of a row's tokens to stages, one after the other.
template <int kState, int kValues>
class TokenCopies {
 public:
  // `first` is the row's first token in the step.
  __device__ TokenCopies(const Mamba2ScanArgs& args, int64_t first, int head, int first_value) {
    const Mamba2Heads& heads = args.heads;
    width_ = heads.state_width();
    inner_ = heads.inner();
    heads_ = heads.heads;
    const int64_t group = head / (heads.heads / heads.groups);
    const int thread = static_cast<int>(threadIdx.x);
    b_ = args.operands.bc + (first + thread / kStateCopies) * 2 * width_ + group * kState +
         thread % kStateCopies * 4;
    x_ = args.operands.x + (first + thread / kValueCopies) * inner_ +
         int64_t{head} * heads.head_size + first_value + thread % kValueCopies * 4;
    gates_ = args.operands.gates + (first + thread) * heads_ + head;
  }

  // Begins the copies of the next tokens: `count` of them, at most those of a stage.
  __device__ void Begin(int count, Operands<kState, kValues>& to) {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < kTokens * kStateCopies / kThreads; ++i) {
      const int t = thread / kStateCopies + i * (kThreads / kStateCopies);
      const int at = thread % kStateCopies * 4;
      if (t >= count) continue;
      const float* const b = b_ + i * (kThreads / kStateCopies) * 2 * width_;
      CopyAsync(&to.b[t][at], b);
      CopyAsync(&to.c[t][at], b + width_);
    }
    if (const int t = thread / kValueCopies; t < count) {
      CopyAsync(&to.x[t][thread % kValueCopies * 4], x_);
    }
    if (thread < count) CopyGates(&to.gates[thread], gates_);
    b_ += kTokens * 2 * width_;
    x_ += kTokens * inner_;
    gates_ += kTokens * heads_;
  }

 private:
  static constexpr int kThreads = kScanThreads<kValues>;
  static constexpr int kTokens = Operands<kState, kValues>::kTokens;
  static constexpr int kStateCopies = kState / 4, kValueCopies = kValues / 4;  // of a token
  static_assert(kThreads % kStateCopies == 0 && kTokens * kStateCopies % kThreads == 0);
  static_assert(kTokens * kValueCopies <= kThreads);

  int64_t width_, inner_, heads_;
  const float* b_;
  const float* x_;
  const Mamba2Gates* gates_;
};

// Computes the first `count` tokens of a stage. `out` is the first one's output of the lane's first
// row, `width` the distance of tokens in it.
template <int kState, int kValues>
__device__ void AdvanceTokens(const Operands<kState, kValues>& stage, int count, int row, int lane,
                              float skip, float* out, int64_t width, LaneRows<kState>& state) {
  const auto advance = [&](int t, float* sums) {
    float x[kLaneRows];
    Load4(&stage.x[t][row], x);
    state.Advance(stage.b[t], stage.c[t], x, stage.gates[t], sums);
  };
  int t = 0;
#pragma unroll 1
  for (; t + kSumTokens <= count; t += kSumTokens) {
    float sums[kRowLanes];
#pragma unroll
    for (int i = 0; i < kSumTokens; ++i) advance(t + i, sums + i * kLaneRows);
    Scatter(lane, sums);
    const int token = t + lane / kLaneRows, r = lane % kLaneRows;
    out[token * width + r] = __fmaf_rn(skip, stage.x[token][row + r], sums[0]);
  }
#pragma unroll 1
  for (; t < count; ++t) {
    float sums[kLaneRows];
    advance(t, sums);
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
      const float sum = AddOverLanes(sums[r]);
      if (lane == 0) out[t * width + r] = __fmaf_rn(skip, stage.x[t][row + r], sum);
    }
  }
}

// The grid is (parts of a head, heads, rows). A CTA runs through the tokens of a row, whose
// operands arrive by asynchronous copies two stages ahead. Without kPrompts each row has one token.
template <int kState, int kValues, bool kPrompts>
__global__ void __launch_bounds__(kScanThreads<kValues>)
    Mamba2ScanKernel(const __grid_constant__ Mamba2ScanArgs args) {
  const Mamba2Heads& heads = args.heads;
  const int head = blockIdx.y, row = blockIdx.z;
  const int first_value = static_cast<int>(blockIdx.x) * kValues;
  const int lane = threadIdx.x % kRowLanes;
  const int own = static_cast<int>(threadIdx.x) / kRowLanes * kLaneRows;  // the lane's first row
  const float skip = args.skip[head];
  AwaitPredecessor();
  const int64_t first = args.rows.row_first[row];
  const int tokens = static_cast<int>(args.rows.row_first[row + 1] - first);
  const int64_t slot = args.rows.row_slot[row];
  if (tokens <= 0) return;
  const int64_t value = int64_t{head} * heads.head_size + first_value + own;
  float* const rows =
      args.state.data + slot * args.state.slot_stride + Mamba2HeadsAt(heads) + value * kState;
  const int64_t inner = heads.inner();
  float* const out = args.out + first * inner + value;

  LaneRows<kState> state(lane);
  if (args.rows.row_start[row] == 0) {
    state.Clear();
  } else {
    state.Load(rows);
  }
  if constexpr (kPrompts) {
    using Stage = Operands<kState, kValues>;
    constexpr int kStages = 3, kTokens = Stage::kTokens;
    __shared__ Stage stages[kStages];
    TokenCopies<kState, kValues> copies(args, first, head, first_value);
    const auto copy = [&](int from, Stage& stage) {
      if (from < tokens) copies.Begin(min(kTokens, tokens - from), stage);
      CommitCopies();
    };
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) copy(i * kTokens, stages[i]);
    int stage = 0;
#pragma unroll 1
    for (int t = 0; t < tokens; t += kTokens) {
      WaitForCopies<kStages - 2>();
      __syncthreads();  // the tokens are there for all, and all have left the stage before them
      copy(t + (kStages - 1) * kTokens, stages[stage == 0 ? kStages - 1 : stage - 1]);
      AdvanceTokens(stages[stage], min(kTokens, tokens - t), own, lane, skip, out + t * inner,
                    inner, state);
      stage = stage == kStages - 1 ? 0 : stage + 1;
    }
  } else {
    const float* const b = args.operands.bc + first * 2 * heads.state_width() +
                           int64_t{head / (heads.heads / heads.groups)} * kState;
    float x[kLaneRows], sums[kLaneRows];
    Load4(args.operands.x + first * inner + value, x);
    state.Advance(b, b + heads.state_width(), x, args.operands.gates[first * heads.heads + head],
                  sums);
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
      sums[r] = __fmaf_rn(skip, x[r], AddOverLanes(sums[r]));
    }
    if (lane == 0) {
      *reinterpret_cast<float4*>(out) = make_float4(sums[0], sums[1], sums[2], sums[3]);
    }
  }
  state.Store(rows);
}

template <int kState, int kValues>
cudaError_t LaunchBlock(const Mamba2ScanArgs& args, cudaStream_t stream) {
  const dim3 grid(args.heads.head_size / kValues, args.heads.heads, args.rows.rows);
  if (args.rows.max_row_tokens == 1) {
    return LaunchDependent(Mamba2ScanKernel<kState, kValues, false>, grid, kScanThreads<kValues>, 0,
                           stream, args);
  }
  // Not set up early, so that the CTAs of a few rows, which run for long, have an SM each
  // (delta_rule.cu).
  Mamba2ScanKernel<kState, kValues, true><<<grid, kScanThreads<kValues>, 0, stream>>>(args);
  return cudaGetLastError();
}

template <int kState>
cudaError_t LaunchState(const Mamba2ScanArgs& args, cudaStream_t stream) {
  return args.block_values == 64 ? LaunchBlock<kState, 64>(args, stream)
                                 : LaunchBlock<kState, 32>(args, stream);
}

}  // namespace

cudaError_t LaunchMamba2Scan(const Mamba2ScanArgs& args, cudaStream_t stream) {
  if (!IsValid(args.heads) || !IsValid(args.rows) || !IsValid(args.operands) ||
      !IsValid(args.state, args.heads) || args.skip == nullptr || args.out == nullptr ||
      !IsAligned16(args.out) || !IsBlockFor(args.block_values, args.heads)) {
    return cudaErrorInvalidValue;
  }
  if (args.rows.rows == 0 || args.rows.max_tokens == 0) return cudaSuccess;
  return args.heads.state_size == 128 ? LaunchState<128>(args, stream)
                                      : LaunchState<256>(args, stream);
}

}  // namespace millrace::kernels
