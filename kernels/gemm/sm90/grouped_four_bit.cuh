// Products of four-bit weights in grouped_kernel.cuh, by mma.sync. With few tokens wgmma is the
// wrong instruction: its fences let no unpacking run beside it, and moving descriptors takes longer
// than the products.
//
// Unpacking takes about 11 instructions for 8 rows of 16 columns, each of which waits for the one
// before, and so do the products (K is summed in sequence). So a tile of 64 rows is spread over
// eight warps, and each reads what it needs one block ahead. A warp has 8 rows, mma.sync's second
// operand, and the tokens are its first one: up to 16 of them cost no more than one.
#ifndef MILLRACE_KERNELS_GEMM_SM90_GROUPED_FOUR_BIT_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_GROUPED_FOUR_BIT_CUH_

#include <algorithm>
#include <cstdint>

#include "kernels/device_util.cuh"
#include "kernels/gemm/four_bit.cuh"
#include "kernels/gemm/sm90/grouped_shape.cuh"
#include "kernels/mma.cuh"

namespace millrace::kernels::sm90 {

// The distances in shared memory of what a thread reads from where a stage's blocks and inputs lie.
// Warp w has rows 8 w ... 8 w + 7 of a tile: half w % 2 of the 16 rows of a word.
template <typename Shape>
struct FourBitLane {
  using Scales = FourBitRowScales<Shape::kFourBitType, Shape::kGroup>;
  uint32_t codes, scales, inputs;

  __device__ FourBitLane() {
    const uint32_t warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
    codes = (warp / 2 * kWarpSize + lane) * 16;
    scales = kFourBitCodeBytes + (warp * 8 + lane / 4) * Scales::kRowBytes;
    // The row that this lane gives LoadMatrices, and its 16-byte word of the first columns: of eight
    // tokens four words, else of 16 tokens two.
    const uint32_t row = Shape::kTokens == 8 ? lane % 8 : lane % 16;
    const uint32_t word = Shape::kTokens == 8 ? lane / 8 : lane / 16;
    inputs = row * kChunk + (word ^ row % 8) * 16;
    // Not to be computed again for each block.
    asm volatile("" : "+r"(codes), "+r"(scales), "+r"(inputs));
  }
};

// A thread's sums: sums[i][2 half + j] is token 16 i + 8 half + lane / 4, row 2 (lane % 4) + j of
// the warp's.
template <int kTokens>
using FourBitSums = float[std::max(kTokens / 16, 1)][4];

// A block of 64 rows and 128 columns, as a thread needs it.
template <typename Shape>
class FourBitBlock {
 public:
  // Reads the codes and scales of a block. The addresses are those of shared memory; `inputs`: two
  // chunks of kTokens rows, as GroupedLoader leaves them.
  __device__ void Read(const FourBitLane<Shape>& lane, uint32_t block, uint32_t inputs) {
    codes_[0] = LoadAt<uint4>(block + lane.codes, 0);
    codes_[1] = LoadAt<uint4>(block + lane.codes, 2048);
    scales_.Read(block + lane.scales);
    inputs_ = inputs + lane.inputs;
  }

  // sums += the inputs times rows of half kHalf of the block, columns in sequence.
  template <int kHalf>
  __device__ void Multiply(FourBitScale scale, FourBitSums<Shape::kTokens>& sums) {
    if constexpr (Shape::kFourBitType == FourBitType::kMxfp4) {
      if (__all_sync(kFullWarp, scales_.AreSmall())) {
        MultiplyBy(
            [this](uint32_t word, int step, uint32_t(&values)[2]) {
              scales_.template UnpackSmall<kHalf>(word, step, values);
            },
            sums);
        return;
      }
    }
    MultiplyBy(
        [this, scale](uint32_t word, int step, uint32_t(&values)[2]) {
          scales_.template Unpack<kHalf>(word, step, scale, values);
        },
        sums);
  }

 private:
  static constexpr int kPairs = 4;  // of steps of 16 columns

  // The address of this lane's row of the inputs of 32 columns. Words of 16 bytes are permuted by
  // the row's number modulo 8: the second half of a chunk is 4 words away.
  __device__ uint32_t Inputs(int pair) const {
    return (inputs_ + pair / 2 * (Shape::kTokens * kChunk)) ^ pair % 2 * 64;
  }

  template <typename Unpack>
  __device__ void MultiplyBy(const Unpack& unpack, FourBitSums<Shape::kTokens>& sums) {
    const uint32_t words[8] = {codes_[0].x, codes_[0].y, codes_[0].z, codes_[0].w,
                               codes_[1].x, codes_[1].y, codes_[1].z, codes_[1].w};
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      uint32_t values[2][2];
      unpack(words[2 * pair], 2 * pair, values[0]);
      unpack(words[2 * pair + 1], 2 * pair + 1, values[1]);
      if constexpr (Shape::kTokens == 8) {
        uint32_t inputs[4];
        LoadMatrices(Inputs(pair), inputs);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          MultiplyBf16(sums[0], {inputs[2 * i], 0, inputs[2 * i + 1], 0}, values[i][0],
                       values[i][1]);
        }
      } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int tile = 0; tile < Shape::kTokens / 16; ++tile) {
            uint32_t inputs[4];
            LoadMatrices((Inputs(pair) ^ i * 32) + tile * 16 * kChunk, inputs);
            MultiplyBf16(sums[tile], inputs, values[i][0], values[i][1]);
          }
        }
      }
    }
  }

  uint4 codes_[2];
  typename FourBitLane<Shape>::Scales scales_;
  uint32_t inputs_;
};

// The sums of a tile on their way from the warps that have 8 rows each to those that write 16.
template <int kTokens>
struct FourBitExchange {
  static constexpr int kStride = kFourBitRows + 4;  // spreads rows over the banks
  float sums[kTokens][kStride];

  // Called by all multiplying warps. Gives the first four what wgmma would have left them
  // (GroupedWriter); the others have nothing to write.
  template <int kThreads>
  __device__ void Run(const FourBitSums<kTokens>& from, float (&to)[kTokens / 2]) {
    const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
    Sync<kThreads>();  // the tile before is read
#pragma unroll
    for (int i = 0; i < kTokens / 8; ++i) {
      float* const row = &sums[8 * i + lane / 4][8 * warp + lane % 4 * 2];
      *reinterpret_cast<float2*>(row) =
          make_float2(from[i / 2][i % 2 * 2], from[i / 2][i % 2 * 2 + 1]);
    }
    Sync<kThreads>();
    if (warp >= kFourBitRows / 16) return;
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) {
      to[i] = sums[i / 4 * 8 + lane % 4 * 2 + i % 2][16 * warp + lane / 4 + i / 2 % 2 * 8];
    }
  }

 private:
  template <int kThreads>
  __device__ static void Sync() {
    asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
  }
};

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_GROUPED_FOUR_BIT_CUH_
