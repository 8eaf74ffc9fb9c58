#include "kernels/arguments.h"
#include "kernels/device_util.cuh"
#include "kernels/elementwise/gather_rows.h"
#include "kernels/launch.cuh"

namespace millrace::kernels {
namespace {

constexpr int kThreads = 128;

// The grid is (rows, parts of a row). A row has row_words words of 16 bytes.
__global__ void GatherRowsKernel(GatherRowsArgs args, int64_t row_words) {
  AwaitPredecessor();
  const int64_t row = blockIdx.x;
  const int64_t source = args.indices[row];
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

}  // namespace

cudaError_t LaunchGatherRows(const GatherRowsArgs& args, cudaStream_t stream) {
  const Activation& in = args.in;
  const Activation& out = args.out;
  if (args.rows < 0 || args.tokens < 0 || args.indices == nullptr || !IsValid(in, 1) ||
      !IsValid(out, 1) || in.type != out.type || in.scaling != out.scaling ||
      in.stride != out.stride || in.data == out.data) {
    return cudaErrorInvalidValue;
  }
  if (args.rows == 0) return cudaSuccess;
  const int64_t row_words = in.stride * (in.type == Type::kBf16 ? 2 : 1) / 16;
  const int64_t parts = CeilDiv<int64_t>(row_words, kThreads);
  return LaunchDependent(GatherRowsKernel, dim3(args.rows, static_cast<unsigned>(parts)), kThreads,
                         0, stream, args, row_words);
}

}  // namespace millrace::kernels
