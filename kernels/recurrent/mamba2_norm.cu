#include "kernels/recurrent/mamba2_norm.h"

#include "kernels/activation_row.cuh"
#include "kernels/arguments.h"
#include "kernels/device_util.cuh"
#include "kernels/elementwise/gate.cuh"
#include "kernels/launch.cuh"
#include "kernels/norm/norm_rule.cuh"

namespace millrace::kernels {
namespace {

static_assert(kMaxMamba2NormWidth == 8 * kMaxRowThreads, "a thread has one vector of a row");
constexpr int kMostSteps = kMaxMamba2NormWidth / kMamba2NormStep;
constexpr int kStepLanes = kMamba2NormStep / 8;

// A thread's eight columns of a token's row.
template <bool kScaled>
class GatedColumns {
 public:
  // Loads what is constant while steps run.
  __device__ explicit GatedColumns(const Mamba2Outputs& of)
      : of_(of), column_(RowColumn(0, 0)), inside_(column_ < of.width) {
    if (inside_) gate_.LoadConstants(of.gate, column_);
  }

  __device__ int64_t column() const { return column_; }
  __device__ bool inside() const { return inside_; }

  // Loads x * silu(gate), or zeros for columns beyond the last one.
  __device__ void Load(int64_t token, float (&values)[8]) {
    if (!inside_) return;
    float gates[8];
    Load8(of_.x + token * of_.width + column_, values);
    gate_.Load(of_.gate, token, column_);
    gate_.Values(gates);
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = Gate(gates[i], values[i]);
  }

 private:
  const Mamba2Outputs& of_;
  const int64_t column_;
  const bool inside_;
  ProductVector<kScaled> gate_;
};

// Makes sums[g] the sum of the squares of group g. Called by all threads of a CTA, which has a row.
__device__ void SumGroups(const Mamba2Outputs& of, const float (&values)[8],
                          float (&sums)[kMostSteps]) {
  __shared__ float parts[kMostSteps];
  const int thread = static_cast<int>(threadIdx.x),
            warps = static_cast<int>(blockDim.x) / kWarpSize;
  const float part = WarpReduce<Add, kStepLanes>(SumOfSquares(values));
  if (thread % kStepLanes == 0) parts[thread / kStepLanes] = part;
  __syncthreads();
  const int steps = of.group_width / kMamba2NormStep;
  for (int group = thread / kWarpSize; group < of.width / of.group_width; group += warps) {
    const float sum = SumOfParts(parts + group * steps, steps);
    if (thread % kWarpSize == 0) sums[group] = sum;
  }
  __syncthreads();
}

// The grid is tokens.
template <bool kScaled>
__global__ void __launch_bounds__(kMaxRowThreads)
    Mamba2NormKernel(const __grid_constant__ Mamba2NormArgs args) {
  __shared__ float sums[kMostSteps];
  const Mamba2RankSquares& all = args.ranks;
  const int64_t token = blockIdx.x;
  const float tensor_scale = TensorScale(args.out);
  GatedColumns<kScaled> columns(args.outputs);
  float weight[8] = {};
  if (columns.inside()) Load8(args.weight + columns.column(), weight);
  AwaitPredecessor();
  float values[1][8] = {};
  columns.Load(token, values[0]);
  if (all.squares == nullptr) SumGroups(args.outputs, values[0], sums);
  if (columns.inside()) {
    const int group = static_cast<int>(columns.column()) / args.outputs.group_width;
    float sum = 0;
    int width = args.outputs.group_width;
    if (all.squares == nullptr) {
      sum = sums[group];
    } else {
      const float* const of_group =
          all.squares + token * all.ranks * all.record + all.first_group + group;
      for (int rank = 0; rank < all.ranks; ++rank) {
        sum = __fadd_rn(sum, of_group[int64_t{rank} * all.record]);
      }
      width = all.group_width;
    }
    MultiplyBy(weight, values[0]);
    MultiplyBy(NormFactor(sum, 1.0f / static_cast<float>(width), args.epsilon), values[0]);
  }
  WriteRow(values, tensor_scale, 0, token, args.outputs.tokens, args.out);
}

// As above.
template <bool kScaled>
__global__ void __launch_bounds__(kMaxRowThreads)
    Mamba2SquaresKernel(const __grid_constant__ Mamba2SquaresArgs args) {
  __shared__ float sums[kMostSteps];
  const int64_t token = blockIdx.x;
  GatedColumns<kScaled> columns(args.outputs);
  AwaitPredecessor();
  float values[8] = {};
  columns.Load(token, values);
  SumGroups(args.outputs, values, sums);
  const int groups = args.outputs.width / args.outputs.group_width;
  for (int i = static_cast<int>(threadIdx.x); i < args.record; i += static_cast<int>(blockDim.x)) {
    const int group = i - args.first_group;
    args.squares[token * args.record + i] = group >= 0 && group < groups ? sums[group] : 0;
  }
}

bool IsValid(const Mamba2Outputs& outputs) {
  return outputs.tokens >= 0 && outputs.width >= 1 && outputs.width <= kMaxMamba2NormWidth &&
         outputs.group_width >= 1 && outputs.group_width % kMamba2NormStep == 0 &&
         outputs.width % outputs.group_width == 0 && IsValid(outputs.gate, outputs.width) &&
         outputs.x != nullptr && IsAligned16(outputs.x);
}

// Returns whether a record has room for the groups that the rank has a part of.
bool HoldsGroups(const Mamba2Outputs& outputs, int first_group, int record) {
  return first_group >= 0 && record - first_group >= outputs.width / outputs.group_width;
}

bool IsValid(const Mamba2RankSquares& ranks, const Mamba2Outputs& outputs) {
  return ranks.squares == nullptr ||
         (ranks.ranks >= 1 && HoldsGroups(outputs, ranks.first_group, ranks.record) &&
          ranks.group_width >= 1);
}

int ThreadsOf(int64_t columns) {
  return static_cast<int>(CeilDiv(columns, int64_t{8} * kWarpSize)) * kWarpSize;
}

}  // namespace

cudaError_t LaunchMamba2Norm(const Mamba2NormArgs& args, cudaStream_t stream) {
  const Mamba2Outputs& outputs = args.outputs;
  if (!IsValid(outputs) || !IsValid(args.out, outputs.width) ||
      args.out.stride > kMaxMamba2NormWidth || args.weight == nullptr ||
      !IsAligned16(args.weight) || !(args.epsilon >= 0) || !IsValid(args.ranks, outputs)) {
    return cudaErrorInvalidValue;
  }
  if (outputs.tokens == 0) return cudaSuccess;
  return LaunchDependent(IsScaled(outputs.gate) ? Mamba2NormKernel<true> : Mamba2NormKernel<false>,
                         outputs.tokens, ThreadsOf(args.out.stride), 0, stream, args);
}

cudaError_t LaunchMamba2Squares(const Mamba2SquaresArgs& args, cudaStream_t stream) {
  const Mamba2Outputs& outputs = args.outputs;
  if (!IsValid(outputs) || !HoldsGroups(outputs, args.first_group, args.record) ||
      args.squares == nullptr) {
    return cudaErrorInvalidValue;
  }
  if (outputs.tokens == 0) return cudaSuccess;
  return LaunchDependent(
      IsScaled(outputs.gate) ? Mamba2SquaresKernel<true> : Mamba2SquaresKernel<false>,
      outputs.tokens, ThreadsOf(outputs.width), 0, stream, args);
}

}  // namespace millrace::kernels
