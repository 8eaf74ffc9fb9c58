#include "kernels/gemm/four_bit.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/arguments.h"
#include "kernels/device_util.cuh"
#include "kernels/gemm/four_bit.cuh"
#include "kernels/launch.cuh"
#include "kernels/transpose.cuh"

namespace millrace::kernels {
namespace {

constexpr int kThreads = 128;  // a warp group's, whose codes a block holds
constexpr uint32_t kLineUnitTwice = 0x4b804b80;
static_assert(kLineUnit == 0x1p24f);

// Returns the code of a source row's column, 0 outside the matrix.
__device__ uint32_t CodeAt(const TileFourBitArgs& args, int64_t row, int64_t column) {
  if (row < 0 || column >= args.columns) return 0;
  return args.codes[row * (args.columns / 2) + column / 2] >> (column % 2 * 4) & 15;
}

// Returns what a group is stored as, of which the tile has a scale, or 0 where it lies outside of
// the matrix. `half` is 1 for the rows r + 8.
__device__ uint32_t StoredGroup(const TileFourBitArgs& args, bool inside, int64_t at, int half) {
  const uint32_t bits = inside ? static_cast<const uint16_t*>(args.scales)[at] : 0;
  const auto bf16 = [](uint32_t upper) { return __uint_as_float(upper << 16); };
  const int zero = inside && args.zeros != nullptr ? args.zeros[at] : 8;
  switch (args.format.Steps()) {
    case FourBitSteps::kLine: {
      const float scale = bf16(bits);
      const bool affine = args.format.type == FourBitType::kInt4Affine;
      const float minimum = !affine ? -8 * scale : inside ? __bfloat162float(args.minima[at]) : 0;
      return FourBitGroup<FourBitSteps::kLine>::Store(scale, minimum, half);
    }
    case FourBitSteps::kFactors: {
      const float scale = __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
      return FourBitGroup<FourBitSteps::kFactors>::Store(scale, half);
    }
    case FourBitSteps::kBf16:
      return FourBitGroup<FourBitSteps::kBf16>::Store(bits, zero);
    default:
      return FourBitGroup<FourBitSteps::kF16>::Store(bits, zero);
  }
}

// Writes the bytes of a group's scale: of a source row, or -1, and a group of columns.
__device__ void WriteScale(const TileFourBitArgs& args, int64_t row, int64_t group, int half,
                           uint8_t* to) {
  const int64_t groups = args.columns / args.format.group;
  const bool inside = row >= 0 && group < groups;
  const int64_t at = row * groups + group;
  if (args.format.type == FourBitType::kMxfp4) {
    *to = inside ? static_cast<const uint8_t*>(args.scales)[at] : 0;
    return;
  }
  *reinterpret_cast<uint32_t*>(to) = StoredGroup(args, inside, at, half);
}

// A CTA for each block; the grid is (column blocks, row blocks).
__global__ void __launch_bounds__(kThreads) TileFourBitKernel(TileFourBitArgs args) {
  AwaitPredecessor();
  const FourBitFormat format = args.format;
  const int64_t block = int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
  uint8_t* const out = static_cast<uint8_t*>(args.out) + block * format.BlockBytes();
  const int64_t first_row = int64_t{blockIdx.y} * kFourBitRows;
  const int64_t first_column = int64_t{blockIdx.x} * kFourBitColumns;
  const auto source = [&](int row) -> int64_t {
    if (first_row + row >= args.rows) return -1;
    return args.source_rows == nullptr ? first_row + row : args.source_rows[first_row + row];
  };
  const int thread = threadIdx.x, lane = thread % kWarpSize;
  const int row = thread / kWarpSize * 16 + lane / 4;
  const int64_t rows[2] = {source(row), source(row + 8)};
  for (int step = 0; step < kFourBitColumns / 16; ++step) {
    uint32_t word = 0;
    for (int pair = 0; pair < 4; ++pair) {
      const int64_t column = first_column + 16 * step + 2 * (lane % 4) + pair / 2 * 8;
      word |= PackFourBit(format.type, pair, CodeAt(args, rows[pair % 2], column),
                          CodeAt(args, rows[pair % 2], column + 1));
    }
    reinterpret_cast<uint32_t*>(out)[step / 4 * 512 + thread * 4 + step % 4] = word;
  }
  const int groups = kFourBitColumns / format.group;
  for (int i = thread; i < kFourBitRows * groups; i += kThreads) {
    WriteScale(args, source(i / groups), first_column / format.group + i % groups,
               i / groups / 8 % 2, out + kFourBitCodeBytes + i * format.ScaleBytes());
  }
}

// A CTA for each block, as above. Rows go through shared memory, so that a warp stores 256 bytes of
// two rows at a time: stores of 64 bytes a row reached 65 % of the read rate instead of 86 %.
template <FourBitType kType, int kGroup>
__global__ void __launch_bounds__(kThreads) DequantizeFourBitKernel(DequantizeFourBitArgs args) {
  __shared__ uint4 tile[kFourBitRows][kFourBitColumns / 8];
  AwaitPredecessor();
  const int64_t block = int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
  const uint8_t* const from =
      static_cast<const uint8_t*>(args.tiles) + block * args.format.BlockBytes();
  const int thread = threadIdx.x, lane = thread % kWarpSize;
  const int row = thread / kWarpSize * 16 + lane / 4;
  const uint4 codes[2] = {LoadAt<uint4>(from, thread * 16),
                          LoadAt<uint4>(from, 2048 + thread * 16)};
  FourBitScales<kType, kGroup> scales;
  scales.Read(from + kFourBitCodeBytes + row * scales.kRowBytes);
  const uint32_t words[8] = {codes[0].x, codes[0].y, codes[0].z, codes[0].w,
                             codes[1].x, codes[1].y, codes[1].z, codes[1].w};
  // Neighbouring rows' words of 16 bytes lie in different banks.
  const auto place = [](int to, int column) { return column ^ (to & 1) << 2; };
  uint32_t values[8][4];
  WithSteps<kType>(args.format.Steps(), [&](auto steps) {
    scales.template Unpack<decltype(steps)::value, 0>(words, values);
  });
#pragma unroll
  for (int step = 0; step < kFourBitColumns / 16; step += 2) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t eights[4] = {values[step][half], values[step][2 + half], values[step + 1][half],
                            values[step + 1][2 + half]};
      if (args.format.Unit() != 1) {
        for (uint32_t& pair : eights) pair = MultiplyPairs(pair, kLineUnitTwice);
      }
      TransposeQuad(eights);
      const int to = row + 8 * half;
      tile[to][place(to, 2 * step + lane % 4)] =
          make_uint4(eights[0], eights[1], eights[2], eights[3]);
    }
  }
  __syncthreads();
  constexpr int kRowWords = kFourBitColumns / 8, kRowsAtOnce = kThreads / kRowWords;
  const int64_t first_row = int64_t{blockIdx.y} * kFourBitRows;
  const int column = thread % kRowWords;
#pragma unroll
  for (int first = 0; first < kFourBitRows; first += kRowsAtOnce) {
    const int to = first + thread / kRowWords;
    if (first_row + to >= args.rows) break;
    Bf16* const out = args.out + (first_row + to) * args.stride +
                      int64_t{blockIdx.x} * kFourBitColumns + 8 * column;
    *reinterpret_cast<uint4*>(out) = tile[to][place(to, column)];
  }
}

bool AreValid(const FourBitFormat& format, int64_t rows, int64_t stride) {
  return format.IsValid() && rows >= 1 && stride >= kColumnPadding &&
         stride % kColumnPadding == 0 && CeilDiv<int64_t>(rows, kFourBitRows) <= 65535;
}

dim3 BlocksOf(int64_t rows, int64_t stride) {
  return dim3(static_cast<unsigned>(stride / kFourBitColumns),
              static_cast<unsigned>(CeilDiv<int64_t>(rows, kFourBitRows)));
}

}  // namespace

cudaError_t LaunchTileFourBit(const TileFourBitArgs& args, cudaStream_t stream) {
  if (!AreValid(args.format, args.rows, args.stride) || args.columns < 1 ||
      args.columns % args.format.group != 0 || args.columns > args.stride ||
      args.codes == nullptr || args.scales == nullptr || args.out == nullptr ||
      !IsAligned16(args.out) ||
      ((args.format.type != FourBitType::kInt4 || args.format.symmetric) &&
       args.zeros != nullptr) ||
      (args.format.type == FourBitType::kInt4Affine) != (args.minima != nullptr)) {
    return cudaErrorInvalidValue;
  }
  return LaunchDependent(TileFourBitKernel, BlocksOf(args.rows, args.stride), dim3(kThreads), 0,
                         stream, args);
}

cudaError_t LaunchDequantizeFourBit(const DequantizeFourBitArgs& args, cudaStream_t stream) {
  if (!AreValid(args.format, args.rows, args.stride) || args.tiles == nullptr ||
      !IsAligned16(args.tiles) || args.out == nullptr || !IsAligned16(args.out)) {
    return cudaErrorInvalidValue;
  }
  if (!KernelsAwait()) return cudaErrorNotSupported;  // pairs of BF16 need sm_90
  const auto launch = [&](auto kernel) {
    return LaunchDependent(kernel, BlocksOf(args.rows, args.stride), dim3(kThreads), 0, stream,
                           args);
  };
  if (args.format.type == FourBitType::kMxfp4) {
    return launch(DequantizeFourBitKernel<FourBitType::kMxfp4, 32>);
  }
  if (args.format.type == FourBitType::kInt4Affine) {
    return launch(DequantizeFourBitKernel<FourBitType::kInt4Affine, 32>);
  }
  switch (args.format.group) {
    case 32:
      return launch(DequantizeFourBitKernel<FourBitType::kInt4, 32>);
    case 64:
      return launch(DequantizeFourBitKernel<FourBitType::kInt4, 64>);
    default:
      return launch(DequantizeFourBitKernel<FourBitType::kInt4, 128>);
  }
}

}  // namespace millrace::kernels
