#include "kernels/arguments.h"
#include "kernels/device_util.cuh"
#include "kernels/elementwise/embed.h"
#include "kernels/launch.cuh"

namespace millrace::kernels {
namespace {

constexpr int kThreads = 128;

// The grid is (tokens, parts of a row).
__global__ void EmbedKernel(const __grid_constant__ EmbedArgs args) {
  AwaitPredecessor();
  const int64_t token = blockIdx.x;
  const int column = 8 * (blockIdx.y * kThreads + threadIdx.x);
  if (column >= args.width) return;
  const int32_t id = args.ids[token];
  float values[8];
  if (id >= 0 && id < args.vocab) {
    const int part = args.part_rows > 0 ? id / args.part_rows : 0;
    const Bf16* const table = args.part_rows > 0 ? args.parts[part] : args.table;
    const int64_t row = id - part * args.part_rows;
    Load8(table + row * args.table_stride + column, values);
#pragma unroll
    for (float& value : values) value *= args.factor;
  } else {
#pragma unroll
    for (float& value : values) value = __int_as_float(0x7fffffff);
  }
  Store8(args.residual + token * args.width + column, values);
}

}  // namespace

cudaError_t LaunchEmbed(const EmbedArgs& args, cudaStream_t stream) {
  if (args.part_rows > 0) {
    const int parts = CeilDiv(args.vocab, args.part_rows);
    if (parts > kMaxTableParts) return cudaErrorInvalidValue;
    for (int part = 0; part < parts; ++part) {
      if (args.parts[part] == nullptr || !IsAligned16(args.parts[part])) {
        return cudaErrorInvalidValue;
      }
    }
  }
  if (args.part_rows < 0 || args.tokens < 0 || args.width < 8 || args.width % 8 != 0 ||
      args.vocab < 1 || args.table_stride < args.width || args.table_stride % 8 != 0 ||
      args.ids == nullptr || args.table == nullptr || !IsAligned16(args.table) ||
      args.residual == nullptr || !IsAligned16(args.residual)) {
    return cudaErrorInvalidValue;
  }
  if (args.tokens == 0) return cudaSuccess;
  return LaunchDependent(EmbedKernel, dim3(args.tokens, CeilDiv(args.width / 8, kThreads)),
                         kThreads, 0, stream, args);
}

}  // namespace millrace::kernels
