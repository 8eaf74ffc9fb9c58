// Products of four-bit weights in grouped_kernel.cuh. With tiles of 32 tokens, but for DenseTiles,
// a warp unpacks 16 rows of a block into mma.sync's registers, and reads what it needs one block
// ahead: the compiler spreads unpacking between the products, which wgmma's fences do not allow.
// wgmma multiplies with 64 tokens, where shared memory could not serve four warps that each read
// all inputs, and with DenseTiles. docs/experiments/experts.md compares.
#ifndef MILLRACE_KERNELS_GEMM_SM90_GROUPED_GROUPED_FOUR_BIT_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_GROUPED_GROUPED_FOUR_BIT_CUH_

#include <cstdint>

#include "kernels/device_util.cuh"
#include "kernels/gemm/four_bit.cuh"
#include "kernels/gemm/sm90/grouped/grouped_shape.cuh"
#include "kernels/gemm/sm90/wgmma.cuh"
#include "kernels/mma.cuh"

namespace millrace::kernels::sm90 {

// The distances in shared memory of what a thread reads from where a stage's blocks and inputs lie.
template <typename Shape>
struct FourBitLane {
  using Scales = FourBitScales<Shape::kFourBitType, Shape::kGroup>;
  uint32_t codes, scales, inputs[2];

  __device__ FourBitLane() {
    const uint32_t thread = threadIdx.x % 128, lane = thread % kWarpSize;
    codes = thread * 16;
    scales = kFourBitCodeBytes + (thread / kWarpSize * 16 + lane / 4) * Scales::kRowBytes;
    // The row that this lane gives LoadMatrices, and its 16-byte word of the first 32 columns and
    // of the next: words are permuted by the row's number modulo 8.
    inputs[0] = lane % 8 * kChunk + (lane / 8 ^ lane % 8) * 16;
    inputs[1] = inputs[0] ^ 64;
    // Not to be computed again for each block.
    asm volatile("" : "+r"(codes), "+r"(scales), "+r"(inputs[0]), "+r"(inputs[1]));
  }
};

// A block of 64 rows and 128 columns and the inputs that it is multiplied by, as a thread needs
// them.
template <typename Shape>
class FourBitBlock {
 public:
  // Reads the codes and scales of a block. The addresses are those of shared memory; `inputs`: two
  // chunks of kTokens rows, as GroupedLoader leaves them.
  __device__ void Read(const FourBitLane<Shape>& lane, uint32_t block, uint32_t inputs) {
    codes_[0] = LoadAt<uint4>(block + lane.codes, 0);
    codes_[1] = LoadAt<uint4>(block + lane.codes, 2048);
    scales_.Read(block + lane.scales);
    inputs_[0] = inputs + lane.inputs[0];
    inputs_[1] = inputs + lane.inputs[1];
  }

  // sums += the block times the inputs, columns in sequence.
  template <FourBitSteps kSteps>
  __device__ void Multiply(float (&sums)[Shape::kTokens / 2]) {
    scales_.template WithUnpacker<kSteps>([&](auto&& unpack) { MultiplyBy(unpack, sums); });
  }

 private:
  static constexpr int kTokenTiles = Shape::kTokens / 8;
  static constexpr int kPairs = 4;  // of steps of 16 columns
  static constexpr int kAhead = 4;
  static_assert(kTokenTiles % kAhead == 0);
  static constexpr int kReads = kPairs * kTokenTiles / kAhead;

  // Returns the address of this lane's row of the inputs of 32 columns and eight tokens.
  __device__ uint32_t Inputs(int pair, int token_tile) const {
    return inputs_[pair % 2] + pair / 2 * (Shape::kTokens * kChunk) + token_tile * 8 * kChunk;
  }

  template <typename Unpack>
  __device__ void MultiplyBy(Unpack& unpack, float (&sums)[Shape::kTokens / 2]) {
    const uint32_t words[8] = {codes_[0].x, codes_[0].y, codes_[0].z, codes_[0].w,
                               codes_[1].x, codes_[1].y, codes_[1].z, codes_[1].w};
    uint32_t inputs[2][kAhead][4];  // being multiplied, and read ahead
    ReadAhead(0, inputs[0]);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      uint32_t values[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) unpack(words[2 * pair + i], 2 * pair + i, values[i]);
#pragma unroll
      for (int first = 0; first < kTokenTiles; first += kAhead) {
        const int now = (pair * kTokenTiles + first) / kAhead;
        if (now + 1 < kReads) ReadAhead(now + 1, inputs[(now + 1) % 2]);
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          const uint32_t(&b)[4] = inputs[now % 2][i];
          float(&c)[4] = *reinterpret_cast<float(*)[4]>(&sums[4 * (first + i)]);
          MultiplyBf16(c, values[0], b[0], b[1]);
          MultiplyBf16(c, values[1], b[2], b[3]);
        }
      }
    }
  }

  // Reads inputs of kAhead token tiles, the `number`th such read of a block.
  __device__ void ReadAhead(int number, uint32_t (&inputs)[kAhead][4]) const {
    const int tile = number * kAhead;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      LoadMatrices(Inputs(tile / kTokenTiles, tile % kTokenTiles + i), inputs[i]);
    }
  }

  uint4 codes_[2];
  typename FourBitLane<Shape>::Scales scales_;
  uint32_t inputs_[2];
};

// kSteps times 16 columns of a block of 64 rows and 128 columns, unpacked into wgmma's registers.
template <typename Shape, int kSteps = 8>
struct FourBitValues {
  static_assert(kSteps % 4 == 0);
  uint32_t of_step[kSteps][4];

  // Unpacks the columns 16 * kFirst ... of the block.
  template <FourBitSteps kUnpackSteps, int kFirst = 0>
  __device__ void Unpack(const FourBitLane<Shape>& lane, uint32_t block) {
    uint32_t words[kSteps];
#pragma unroll
    for (int i = 0; i < kSteps; i += 4) {
      const uint4 codes = LoadAt<uint4>(block + lane.codes, 512 * (kFirst + i));
      words[i] = codes.x, words[i + 1] = codes.y, words[i + 2] = codes.z, words[i + 3] = codes.w;
    }
    typename FourBitLane<Shape>::Scales scales;
    scales.Read(block + lane.scales);
    scales.template Unpack<kUnpackSteps, kFirst>(words, of_step);
  }

  // Begins sums += these columns times the first kTokens inputs. `inputs`: the descriptor of their
  // first chunk.
  template <int kTokens = Shape::kTokens>
  __device__ void Multiply(uint32_t inputs, float (&sums)[kTokens / 2]) const {
    constexpr uint32_t kNextInputs = Shape::kTokens * kChunk >> 4;  // of the next chunk
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      MultiplyRegistersAsync<kTokens>(sums, of_step[k],
                                      inputs + k / 4 * kNextInputs + k % 4 * kNextStep);
    }
  }

  __device__ void FenceAll() {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) Fence(of_step[k]);
  }
};

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_GROUPED_GROUPED_FOUR_BIT_CUH_
