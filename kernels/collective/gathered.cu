#include "kernels/collective/gathered.h"

#include "kernels/arguments.h"
#include "kernels/device_util.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels {
namespace {

constexpr int kThreads = 128;

// The grid is (tokens, parts of a row) for all kernels of rows.
__device__ int Column() { return 8 * (blockIdx.y * kThreads + threadIdx.x); }

dim3 RowGrid(int tokens, int width) { return dim3(tokens, CeilDiv(width / 8, kThreads)); }

bool IsRow(int tokens, int width) { return tokens >= 0 && width >= 8 && width % 8 == 0; }

__global__ void PackProductKernel(const __grid_constant__ PackProductArgs args) {
  AwaitPredecessor();
  const int64_t token = blockIdx.x;
  const int column = Column();
  if (column >= args.width) return;
  const Product& partial = args.partial;
  uint4 raw = LoadRaw8(partial.data + token * partial.stride + column);
  if (partial.token_scales != nullptr || partial.channel_scales != nullptr) {
    ProductVector<true> scaled;
    scaled.LoadConstants(partial, column);
    scaled.data = raw;
    scaled.token_scale = partial.token_scales != nullptr ? partial.token_scales[token] : 1;
    float values[8];
    scaled.Values(values);
    raw = Pack8(values);
  }
  *reinterpret_cast<uint4*>(args.packed + token * args.width + column) = raw;
}

__global__ void SumPartsKernel(const __grid_constant__ SumPartsArgs args) {
  AwaitPredecessor();
  const int64_t token = blockIdx.x;
  const int column = Column();
  if (column >= args.width) return;
  const int64_t part = static_cast<int64_t>(args.tokens) * args.width;
  const Bf16* const from = args.parts + token * args.width + column;
  float sum[8];
  Load8(from, sum);
  for (int rank = 1; rank < args.ranks; ++rank) {
    float values[8];
    Load8(from + rank * part, values);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] = __fadd_rn(sum[i], values[i]);
  }
  Store8(args.sum + token * args.sum_stride + column, sum);
}

__global__ void EmbedShareKernel(const __grid_constant__ EmbedShareArgs args) {
  AwaitPredecessor();
  const int64_t token = blockIdx.x;
  const int column = Column();
  const int32_t id = args.ids[token];
  if (column >= args.width || id < 0 || id >= args.vocab || id / args.part_rows != args.rank) {
    return;
  }
  const int64_t row = id - args.rank * args.part_rows;
  *reinterpret_cast<uint4*>(args.rows + token * args.width + column) =
      LoadRaw8(args.table + row * args.table_stride + column);
}

__global__ void PickRowsKernel(const __grid_constant__ PickRowsArgs args) {
  AwaitPredecessor();
  const int64_t token = blockIdx.x;
  const int column = Column();
  if (column >= args.width) return;
  const int32_t id = args.ids[token];
  float values[8];
  if (id >= 0 && id < args.vocab) {
    const int64_t row = static_cast<int64_t>(id / args.part_rows) * args.tokens + token;
    Load8(args.parts + row * args.width + column, values);
#pragma unroll
    for (float& value : values) value *= args.factor;
  } else {
#pragma unroll
    for (float& value : values) value = __int_as_float(0x7fffffff);
  }
  Store8(args.residual + token * args.width + column, values);
}

// The grid is (rows * ranks, parts of a record).
__global__ void InterleaveKernel(const __grid_constant__ InterleaveArgs args) {
  AwaitPredecessor();
  const int words = args.record_bytes / 8;
  const int word = blockIdx.y * kThreads + threadIdx.x;
  if (word >= words) return;
  const int64_t row = blockIdx.x / args.ranks;
  const int64_t rank = blockIdx.x % args.ranks;
  static_cast<uint64_t*>(args.gathered)[static_cast<int64_t>(blockIdx.x) * words + word] =
      static_cast<const uint64_t*>(args.records)[(rank * args.rows + row) * words + word];
}

}  // namespace

cudaError_t LaunchPackProduct(const PackProductArgs& args, cudaStream_t stream) {
  if (!IsRow(args.tokens, args.width) || !IsValid(args.partial, args.width) ||
      args.packed == nullptr || !IsAligned16(args.packed)) {
    return cudaErrorInvalidValue;
  }
  if (args.tokens == 0) return cudaSuccess;
  return LaunchDependent(PackProductKernel, RowGrid(args.tokens, args.width), kThreads, 0, stream,
                         args);
}

cudaError_t LaunchSumParts(const SumPartsArgs& args, cudaStream_t stream) {
  if (!IsRow(args.tokens, args.width) || args.ranks < 1 || args.parts == nullptr ||
      !IsAligned16(args.parts) || args.sum == nullptr || !IsAligned16(args.sum) ||
      args.sum_stride < args.width || args.sum_stride % 8 != 0) {
    return cudaErrorInvalidValue;
  }
  if (args.tokens == 0) return cudaSuccess;
  return LaunchDependent(SumPartsKernel, RowGrid(args.tokens, args.width), kThreads, 0, stream,
                         args);
}

cudaError_t LaunchEmbedShare(const EmbedShareArgs& args, cudaStream_t stream) {
  if (!IsRow(args.tokens, args.width) || args.ids == nullptr || args.table == nullptr ||
      !IsAligned16(args.table) || args.table_stride < args.width || args.table_stride % 8 != 0 ||
      args.part_rows < 1 || args.rank < 0 || args.vocab < 1 || args.rows == nullptr ||
      !IsAligned16(args.rows)) {
    return cudaErrorInvalidValue;
  }
  if (args.tokens == 0) return cudaSuccess;
  return LaunchDependent(EmbedShareKernel, RowGrid(args.tokens, args.width), kThreads, 0, stream,
                         args);
}

cudaError_t LaunchPickRows(const PickRowsArgs& args, cudaStream_t stream) {
  if (!IsRow(args.tokens, args.width) || args.ids == nullptr || args.parts == nullptr ||
      !IsAligned16(args.parts) || args.part_rows < 1 || args.vocab < 1 ||
      args.residual == nullptr || !IsAligned16(args.residual)) {
    return cudaErrorInvalidValue;
  }
  if (args.tokens == 0) return cudaSuccess;
  return LaunchDependent(PickRowsKernel, RowGrid(args.tokens, args.width), kThreads, 0, stream,
                         args);
}

cudaError_t LaunchInterleave(const InterleaveArgs& args, cudaStream_t stream) {
  const auto aligned = [](const void* pointer) {
    return pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % 8 == 0;
  };
  if (args.rows < 0 || args.ranks < 1 || args.record_bytes < 8 || args.record_bytes % 8 != 0 ||
      !aligned(args.records) || !aligned(args.gathered)) {
    return cudaErrorInvalidValue;
  }
  if (args.rows == 0) return cudaSuccess;
  return LaunchDependent(InterleaveKernel,
                         dim3(args.rows * args.ranks, CeilDiv(args.record_bytes / 8, kThreads)),
                         kThreads, 0, stream, args);
}

}  // namespace millrace::kernels
