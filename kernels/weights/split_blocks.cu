#include "kernels/weights/split_blocks.h"

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/arguments.h"
#include "kernels/device_util.cuh"
#include "kernels/weights/stored_blocks.cuh"

namespace millrace::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxCtas = 4096;
constexpr int kGroup = 32;

// Writes the scale, and minimum, of the group that begins at element `first` of a block.
template <typename T>
__device__ void WriteScale(const SplitBlocksArgs& args, const uint8_t* block,
                           const EightCodes& eight, int64_t at) {
  if constexpr (T::kFormat.type == FourBitType::kMxfp4) {
    static_cast<uint8_t*>(args.scales)[at] = block[0];
  } else if constexpr (T::kFormat.type == FourBitType::kInt4) {
    static_cast<__half*>(args.scales)[at] = *reinterpret_cast<const __half*>(block);
  } else {
    static_cast<Bf16*>(args.scales)[at] = __float2bfloat16_rn(eight.scale);
    args.minima[at] = __float2bfloat16_rn(-eight.minimum);
  }
}

// A thread takes eight elements at a time.
template <typename T>
__global__ void __launch_bounds__(kThreads) SplitBlocksKernel(SplitBlocksArgs args) {
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    for (int64_t column = threadIdx.x * 8; column < args.columns; column += kThreads * 8) {
      const int64_t element = row * args.columns + column;
      const uint8_t* const block =
          static_cast<const uint8_t*>(args.source) + element / T::kElements * T::kBytes;
      const EightCodes eight = T::Load(block, static_cast<int>(element % T::kElements));
      uint32_t word = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) word |= eight.codes[i] << (4 * i);
      reinterpret_cast<uint32_t*>(args.codes)[element / 8] = word;
      if (element % kGroup == 0) WriteScale<T>(args, block, eight, element / kGroup);
    }
  }
}

// The types, with the formats that they are brought to.
struct SplitQ4_0 : Q4_0 {
  static constexpr FourBitFormat kFormat = {FourBitType::kInt4, kGroup, FourBitScale::kF16,
                                            /*symmetric=*/true};
};
struct SplitMxfp4 : Mxfp4 {
  static constexpr FourBitFormat kFormat = {FourBitType::kMxfp4, kGroup};
};
struct SplitQ4_1 : Q4_1 {
  static constexpr FourBitFormat kFormat = {FourBitType::kInt4Affine, kGroup};
};
struct SplitQ4K : Q4K {
  static constexpr FourBitFormat kFormat = {FourBitType::kInt4Affine, kGroup};
};

template <typename T>
cudaError_t Launch(const SplitBlocksArgs& args, cudaStream_t stream) {
  const bool affine = T::kFormat.type == FourBitType::kInt4Affine;
  if (args.columns % T::kElements != 0 || affine != (args.minima != nullptr)) {
    return cudaErrorInvalidValue;
  }
  const int ctas = static_cast<int>(args.rows < kMaxCtas ? args.rows : kMaxCtas);
  SplitBlocksKernel<T><<<ctas, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace

std::optional<FourBitFormat> FourBitFormatOf(StoredType stored) {
  switch (stored) {
    case StoredType::kQ4_0:
      return SplitQ4_0::kFormat;
    case StoredType::kMxfp4:
      return SplitMxfp4::kFormat;
    case StoredType::kQ4_1:
      return SplitQ4_1::kFormat;
    case StoredType::kQ4K:
      return SplitQ4K::kFormat;
    default:
      return std::nullopt;
  }
}

cudaError_t LaunchSplitBlocks(const SplitBlocksArgs& args, cudaStream_t stream) {
  if (args.source == nullptr || args.codes == nullptr || args.scales == nullptr ||
      !IsAligned16(args.source) || !IsAligned16(args.codes) || args.rows < 1 || args.columns < 1) {
    return cudaErrorInvalidValue;
  }
  switch (args.stored) {
    case StoredType::kQ4_0:
      return Launch<SplitQ4_0>(args, stream);
    case StoredType::kMxfp4:
      return Launch<SplitMxfp4>(args, stream);
    case StoredType::kQ4_1:
      return Launch<SplitQ4_1>(args, stream);
    case StoredType::kQ4K:
      return Launch<SplitQ4K>(args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace millrace::kernels
