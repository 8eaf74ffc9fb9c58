// The threads of prompt_kernel.cuh's kernel that fill the pipeline: one chooses the tiles and has
// the copy engine bring weights and rows; three warps unpack four-bit weights.
#ifndef MILLRACE_KERNELS_GEMM_SM90_GROUPED_PROMPT_LOAD_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_GROUPED_PROMPT_LOAD_CUH_

#include <cstdint>

#include "kernels/device_util.cuh"
#include "kernels/gemm/four_bit.cuh"
#include "kernels/gemm/sm90/async_copy.cuh"
#include "kernels/gemm/sm90/dense/wide_output.cuh"
#include "kernels/gemm/sm90/grouped/grouped_load.cuh"
#include "kernels/gemm/sm90/grouped/prompt_shape.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels::sm90 {

// `Delay::Wait` is called before every action that another thread may wait for.
template <typename Shape, typename Delay>
class PromptProducer {
 public:
  __device__ PromptProducer(const PromptParams& params, PromptBarriers& barriers,
                            const PromptMemory<Shape>& memory)
      : params_(params), p_(params.p), barriers_(barriers), memory_(memory) {}

  // Called by one thread. Where the next tile's rows lie is read one tile ahead.
  __device__ void Run() {
    ReleaseDependents();
    PrefetchMap(params_.input);
    if constexpr (!Shape::kFourBit) PrefetchMap(p_.weight);
    WaitForPredecessor();
    const TileList<kPromptTile> list(p_, params_.row_groups);
    int wave = 0, number = NumberOf(wave);
    int4 entry = list.EntryOf(number);  // as long as the list may be, so it may be read
    const int tiles = list.Count();
    while (number < tiles) {
      const GroupedTile tile = TileOf(number, entry);
      number = NumberOf(++wave);
      if (number < tiles) entry = list.EntryOf(number);
      for (int step = 0; step < p_.chunks; ++step) CopyStage(tile, step);
    }
    const int stage = next_.stage;
    barriers_.empty[stage].Wait(next_.phase);
    barriers_.tile[stage] = make_int4(0, 0, 0, 0);
    Delay::Wait();
    barriers_.full[stage].Arrive();
  }

 private:
  // Returns this CTA's number in its cluster.
  __device__ static int Part() { return blockIdx.x % Shape::kCluster; }

  // Returns the number of this cluster's tiles among those of each wave. The tiles of a group that
  // have the same weights are neighbours and may differ in size, so a cluster's place moves from
  // wave to wave.
  __device__ static int NumberOf(int wave) {
    const unsigned clusters = gridDim.x / Shape::kCluster;
    return static_cast<int>(wave * clusters +
                            (blockIdx.x / Shape::kCluster + wave * 37u) % clusters);
  }
  // Divides a group's rows into as many tiles as the list has, of about as many units of
  // kPromptUnit rows each. Numbers are as in grouped_load.cuh. A cluster's last tile of rows may
  // lie behind the weight's, and is not written then.
  __device__ GroupedTile TileOf(int number, const int4& entry) const {
    const GroupTile group = {
        .group = entry.x, .first_tile = entry.y, .first_row = entry.z, .rows = entry.w};
    const int tiles = CeilDiv(group.rows, kPromptTile), units = CeilDiv(group.rows, kPromptUnit);
    const int of_group = number - group.first_tile * params_.row_groups;
    const int tile = of_group % tiles;
    const int first = tile * units / tiles * kPromptUnit;
    const int end = min((tile + 1) * units / tiles * kPromptUnit, group.rows);
    return {.group = group.group,
            .row_tile = of_group / tiles * Shape::kCluster + Part(),
            .first = group.first_row + first,
            .count = end - first};
  }

  __device__ void CopyStage(const GroupedTile& tile, int step) {
    const int stage = next_.stage, units = CeilDiv(tile.count, kPromptUnit);
    Barrier& full = barriers_.full[stage];
    barriers_.empty[stage].Wait(next_.phase);
    Delay::Wait();
    barriers_.tile[stage] = make_int4(tile.group, tile.row_tile, tile.first, tile.count);
    const bool gated = p_.output.gate != GroupedGate::kNone;
    const int first_scale = tile.first / Shape::kCopiedScales * Shape::kCopiedScales;
    const uint32_t token_scale_bytes =
        min(Shape::kTokenScales, p_.padded_tokens - first_scale) * sizeof(float);
    uint32_t bytes =
        units * kPromptUnit * kChunk + (Shape::kFourBit ? Shape::kExtraBytes : Shape::kWeightBytes);
    if constexpr (Shape::kBlocks) bytes += (gated ? 2 : 1) * 16 + token_scale_bytes;
    full.ArriveAndExpect(bytes);
    if constexpr (Shape::kFourBit) {
      CopyFourBit(tile, step, stage);
    } else {
      CopyBox(memory_.Weights(stage), p_.weight, 0,
              tile.group * p_.rows + tile.row_tile * Shape::kRows, step, full, EvictFirst());
    }
#pragma unroll 1
    for (int i = 0; i < units; ++i) {
      const int token = i * kPromptUnit + Part() * Shape::kBoxTokens;
      const uint32_t to = memory_.Inputs(stage) + token * kChunk;
      if constexpr (Shape::kCluster == 1) {
        CopyBox(to, params_.input, 0, tile.first + token, step, full, EvictLast());
      } else {
        CopyBoxToCluster(to, params_.input, 0, tile.first + token, step, full, EvictLast(),
                         (1 << Shape::kCluster) - 1);
      }
    }
    if constexpr (Shape::kBlocks) {
      CopyWeightScales(tile, step, stage, gated);
      CopyBytes(memory_.TokenScales(stage),
                p_.input_scales + int64_t{step} * p_.padded_tokens + first_scale, token_scale_bytes,
                full);
    }
    next_.Advance(p_.stages);
  }

  __device__ void CopyFourBit(const GroupedTile& tile, int step, int stage) const {
    const int column_blocks = p_.chunks / 2, row_blocks = CeilDiv(p_.rows, kFourBitRows);
    Barrier& full = barriers_.full[stage];
#pragma unroll
    for (int i = 0; i < Shape::kRowBlocks; ++i) {
      // A row block past the group's last one stands for rows that are not written.
      const int row_block = min(tile.row_tile * Shape::kRowBlocks + i, row_blocks - 1);
      const uint8_t* const block =
          p_.four_bit +
          ((int64_t{tile.group} * row_blocks + row_block) * column_blocks + step / 2) *
              Shape::kBlockBytes;
      const uint32_t to = memory_.Extra(stage) + i * Shape::kHalfBytes;
      CopyBytes(to, block + step % 2 * Shape::kCodeBytes, Shape::kCodeBytes, full, EvictFirst());
      CopyBytes(to + Shape::kCodeBytes, block + kFourBitCodeBytes,
                Shape::kHalfBytes - Shape::kCodeBytes, full);
    }
  }

  // A tile's rows are of one block, of a gated linear for each factor.
  __device__ void CopyWeightScales(const GroupedTile& tile, int step, int stage, bool gated) const {
    const int factors = gated ? 2 : 1;
    const int first_row = min(tile.row_tile, p_.row_tiles - 1) * Shape::kRows / factors;
    const int column = step / Shape::kCopiedScales * Shape::kCopiedScales;
    for (int factor = 0; factor < factors; ++factor) {
      const int64_t row_block =
          (int64_t{tile.group} * factors + factor) * p_.row_blocks + first_row / 128;
      CopyBytes(memory_.WeightScales(stage, factor),
                p_.weight_scales + row_block * p_.block_scale_stride + column, 16,
                barriers_.full[stage]);
    }
  }

  const PromptParams& params_;
  const GroupedParams& p_;
  PromptBarriers& barriers_;
  const PromptMemory<Shape> memory_;
  PipelineState next_ = {.stage = 0, .phase = 1};  // in their first phase stages are empty
};

// Unpacks four-bit weights to BF16 as wgmma reads them: rows of 128 bytes, whose 16-byte words are
// permuted by the row's number modulo 8.
template <typename Shape, typename Delay>
class PromptUnpacker {
 public:
  // `bytes`: where the stages' half blocks lie, memory.extra.
  __device__ PromptUnpacker(const PromptParams& params, PromptBarriers& barriers,
                            const PromptMemory<Shape>& memory, const uint8_t* bytes)
      : p_(params.p), barriers_(barriers), memory_(memory), bytes_(bytes) {}

  // Called by whole warps, one for each 64 rows of a tile.
  __device__ void Run(int row_block) {
    AwaitPredecessor();
    for (;;) {
      barriers_.full[next_.stage].Wait(next_.phase);
      if (barriers_.tile[next_.stage].w == 0) return;
      UnpackHalf<0>(row_block);
      UnpackHalf<1>(row_block);
    }
  }

 private:
  template <int kHalf>
  __device__ void UnpackHalf(int row_block) {
    const int lane = threadIdx.x % kWarpSize;
    barriers_.full[next_.stage].Wait(next_.phase);
    barriers_.multiplied[to_.stage].Wait(to_.phase);
    const uint8_t* const half =
        bytes_ + next_.stage * Shape::kExtraBytes + row_block * Shape::kHalfBytes;
    const uint32_t to = memory_.Weights(to_.stage) + row_block * kFourBitRows * kChunk;
    // stmatrix: a lane has the address of row lane % 8 of matrix lane / 8; of each 16 rows and 16
    // columns matrix 1 is eight rows on, 2 eight columns, 3 both.
    const uint32_t row = to + (lane / 8 % 2 * 8 + lane % 8) * kChunk;
    constexpr int kParts = 4;
    static_assert(kParts * 16 == kFourBitRows);
    FourBitScales<Shape::kFourBitType, Shape::kGroup> scales[kParts];
    uint4 codes[kParts];
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      scales[i].Read(half + Shape::kCodeBytes + (16 * i + lane / 4) * scales[i].kRowBytes);
      codes[i] = *reinterpret_cast<const uint4*>(half + (i * kWarpSize + lane) * 16);
    }
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const uint32_t words[4] = {codes[i].x, codes[i].y, codes[i].z, codes[i].w};
      uint32_t values[4][4];
      WithSteps<Shape::kFourBitType>(p_.four_bit_steps, [&](auto steps) {
        scales[i].template Unpack<decltype(steps)::value, 4 * kHalf>(words, values);
      });
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        StoreMatrices(row + i * 16 * kChunk + ((2 * k + lane / 16) ^ lane % 8) * 16, values[k][0],
                      values[k][1], values[k][2], values[k][3]);
      }
    }
    __syncwarp();
    Delay::Wait();
    if (lane == 0) barriers_.empty[next_.stage].Arrive();
    FenceShared();
    barriers_.unpacked[to_.stage].Arrive();
    next_.Advance(p_.stages);
    to_.Advance(kUnpackedStages);
  }

  const GroupedParams& p_;
  PromptBarriers& barriers_;
  const PromptMemory<Shape> memory_;
  const uint8_t* const bytes_;
  PipelineState next_;                           // the stage to read
  PipelineState to_ = {.stage = 0, .phase = 1};  // the unpacked stage to write
};

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_GROUPED_PROMPT_LOAD_CUH_
