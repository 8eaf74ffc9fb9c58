#include "kernels/arguments.h"
#include "kernels/device_util.cuh"
#include "kernels/elementwise/gather_rows.h"
#include "kernels/launch.cuh"

namespace millrace::kernels {
namespace {

constexpr int kThreads = 128;
constexpr int kFewRows = 512;

// The grid is (rows, parts of a row). A row has row_words words of 16 bytes.
__global__ void GatherRowsKernel(GatherRowsArgs args, int64_t row_words) {
  AwaitPredecessor();
  const int64_t row = blockIdx.x;
  if (args.count != nullptr && row >= *args.count) return;
  const int64_t source = args.indices[row] / args.slots;
  const int64_t word = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (word < row_words) {
    static_cast<uint4*>(args.out.data)[row * row_words + word] =
        static_cast<const uint4*>(args.in.data)[source * row_words + word];
  }
  if (args.in.scaling == Scaling::kToken && word == 0) {
    args.out.scales[row] = args.in.scales[source];
  }
  if (args.in.scaling == Scaling::kTokenGroup && word < args.in.stride / kColumnPadding) {
    args.out.scales[word * PaddedTokens(args.rows) + row] =
        args.in.scales[word * PaddedTokens(args.tokens) + source];
  }
}

constexpr int kInFlight = 4;
constexpr int kRowsOfCta = 8;

// A warp for each row: many CTAs of a word a thread would take longer to start than to run.
__global__ void __launch_bounds__(kRowsOfCta* kWarpSize)
    GatherManyRowsKernel(GatherRowsArgs args, int row_words) {
  AwaitPredecessor();
  const int lane = threadIdx.x % kWarpSize;
  const int row = static_cast<int>(blockIdx.x * kRowsOfCta + threadIdx.x / kWarpSize);
  // The index is read beside the count: it may be, and is not used if there is no such row.
  if (row >= args.rows) return;
  const int index = args.indices[row];
  if (args.count != nullptr && row >= *args.count) return;
  const int64_t source = index / args.slots;
  const uint4* const from = static_cast<const uint4*>(args.in.data) + source * row_words;
  uint4* const to = static_cast<uint4*>(args.out.data) + int64_t{row} * row_words;
  for (int first = lane; first < row_words; first += kInFlight * kWarpSize) {
    uint4 words[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (first + i * kWarpSize < row_words) words[i] = from[first + i * kWarpSize];
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (first + i * kWarpSize < row_words) to[first + i * kWarpSize] = words[i];
    }
  }
  if (args.in.scaling == Scaling::kToken && lane == 0) {
    args.out.scales[row] = args.in.scales[source];
  }
  if (args.in.scaling != Scaling::kTokenGroup) return;
  for (int group = lane; group < args.in.stride / kColumnPadding; group += kWarpSize) {
    args.out.scales[group * PaddedTokens(args.rows) + row] =
        args.in.scales[group * PaddedTokens(args.tokens) + source];
  }
}

}  // namespace

cudaError_t LaunchGatherRows(const GatherRowsArgs& args, cudaStream_t stream) {
  const Activation& in = args.in;
  const Activation& out = args.out;
  if (args.rows < 0 || args.tokens < 0 || args.indices == nullptr || !IsValid(in, 1) ||
      !IsValid(out, 1) || in.type != out.type || in.scaling != out.scaling ||
      in.stride != out.stride || in.data == out.data || args.slots < 1) {
    return cudaErrorInvalidValue;
  }
  if (args.rows == 0) return cudaSuccess;
  const int64_t row_words = in.stride * (in.type == Type::kBf16 ? 2 : 1) / 16;
  if (args.rows > kFewRows) {
    return LaunchDependent(GatherManyRowsKernel, dim3(CeilDiv(args.rows, kRowsOfCta)),
                           kRowsOfCta * kWarpSize, 0, stream, args, static_cast<int>(row_words));
  }
  const int64_t parts = CeilDiv<int64_t>(row_words, kThreads);
  return LaunchDependent(GatherRowsKernel, dim3(args.rows, static_cast<unsigned>(parts)), kThreads,
                         0, stream, args, row_words);
}

}  // namespace millrace::kernels
