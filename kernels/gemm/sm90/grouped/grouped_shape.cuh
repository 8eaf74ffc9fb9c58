// The parameters of grouped_kernel.cuh's kernel, and how its shared memory is divided.
#ifndef MILLRACE_KERNELS_GEMM_SM90_GROUPED_GROUPED_SHAPE_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_GROUPED_GROUPED_SHAPE_CUH_

#include <cuda.h>

#include <algorithm>
#include <cstdint>

#include "kernels/device_util.cuh"
#include "kernels/gemm/four_bit.h"
#include "kernels/gemm/grouped.h"
#include "kernels/gemm/grouped_linear.h"
#include "kernels/gemm/sm90/async_copy.cuh"
#include "kernels/gemm/sm90/dense/skinny_shape.cuh"
#include "kernels/gemm/sm90/grouped/dense_tiles.h"
#include "kernels/gemm/sm90/pipeline.cuh"
#include "kernels/types.h"

namespace millrace::kernels::sm90 {

// The kind of operands that a kernel is compiled for: the elements of weights and inputs, and where
// scales are applied.
enum class GroupedKind : uint8_t {
  kBf16,
  kFp8,
  kFp8Block,
  kFp8BlockOfBf16,  // with inputs in BF16, which the loading threads quantize
  kInt4By32,
  kInt4By64,
  kInt4By128,
  kMxfp4,
  kInt4Affine
};

struct GroupedOutput {
  void* data;  // [pairs][stride]
  int64_t stride;
  bool fp32;
  GroupedGate gate;
  const float* scale;   // of an FP8 output, or null
  bool rounds_factors;  // GroupedLinearArgs
};

struct GroupedParams {
  CUtensorMap weight;       // boxes of kRows rows and kChunks chunks; not with four bits
  CUtensorMap input_rows;   // with four bits: boxes of kTokens rows and kChunks chunks,
                            // of kGroupWide 32 rows and one chunk
  const uint8_t* four_bit;  // the blocks of four-bit weights
  FourBitSteps four_bit_steps;
  float unit;                  // of the sums: FourBitFormat::Unit, else 1
  const float* weight_scales;  // or null
  WeightScaling weight_scaling;
  int64_t block_scale_stride;  // kBlock: from a row of blocks to the next
  int row_blocks;              // kBlock: rows of blocks of a group, of the gate alone where gated
  const uint8_t* input;        // [tokens][input_words] of 16 bytes
  const float* input_scales;   // or null
  Scaling input_scaling;
  int padded_tokens;
  unsigned input_words;
  GroupedRows groups;          // without an order there is one group, of `tokens` rows
  const int32_t* output_rows;  // where rows of the order go; null: as they lie
  int tokens;
  int slots;
  const float* bias;  // [groups][rows], or null
  GroupedOutput output;
  int rows;       // of a group's weight
  int row_tiles;  // of kRows
  int chunks;     // of 128 bytes of an input row
  int steps;      // of a tile, each a stage of kChunks chunks
  int stages;     // of the pipeline: kMinGroupedStages ... kMaxStages
};

// The loading threads let a stage's inputs arrive when they have begun kLoadLag further ones.
inline constexpr int kLoadLag = 2;
inline constexpr int kMinGroupedStages = kLoadLag + 2;

// A tile of the product, as the loading threads hand it to the others. No rows: the end.
struct GroupedTile {
  int group, row_tile;
  int first, count;  // of the order
};

// The list of a kernel's tiles, of kTokens rows at most; `row_tiles` are those of a weight's rows.
template <int kTokens>
class TileList {
 public:
  __device__ explicit TileList(const GroupedParams& params) : TileList(params, params.row_tiles) {}
  __device__ TileList(const GroupedParams& params, const int& row_tiles)
      : p_(params), row_tiles_(row_tiles) {}

  // The predecessor must have ended, if there is an order.
  __device__ int Count() const {
    return row_tiles_ *
           (p_.groups.order == nullptr ? CeilDiv(p_.tokens, kTokens) : *p_.groups.tile_count);
  }

  // Returns the list's entry for a tile, which may be past the last one.
  __device__ int4 EntryOf(int tile) const {
    if (p_.groups.order == nullptr) return make_int4(0, 0, 0, p_.tokens);
    return reinterpret_cast<const int4*>(p_.groups.tiles)[tile / row_tiles_];
  }

  // The tiles of a group are in the order of the weight's rows, so that those of the same rows are
  // computed at the same time. A group with n tiles of rows has row_tiles * n numbers, and the list
  // has n equal entries for it: any entry tells the group.
  __device__ GroupedTile TileOf(int tile, const int4& entry) const {
    const GroupTile group = {
        .group = entry.x, .first_tile = entry.y, .first_row = entry.z, .rows = entry.w};
    const int tiles = CeilDiv(group.rows, kTokens);
    const int of_group = tile - group.first_tile * row_tiles_;
    const int first = of_group % tiles * kTokens;
    return {.group = group.group,
            .row_tile = of_group / tiles,
            .first = group.first_row + first,
            .count = min(kTokens, group.rows - first)};
  }

 private:
  const GroupedParams& p_;
  const int& row_tiles_;
};

struct GroupedBarriers {
  Barrier full[kMaxStages];    // completes when a stage's weights and inputs have arrived
  Barrier empty[kMaxStages];   // completes when all warps that multiply it have read a stage
  Barrier inputs[kMaxStages];  // kTurns: completes when a stage's inputs have arrived
  int4 tile[kMaxStages];       // the GroupedTile that a stage belongs to

  static constexpr uint32_t kFromFullToEmpty = kMaxStages * sizeof(Barrier);
  static constexpr uint32_t kFromFullToInputs = 2 * kFromFullToEmpty;

  // Runs on one thread. Each of `loaders` threads arrives when its inputs are there, and one thread
  // when it announces what the copy engine brings.
  __device__ void Init(int stages, int loaders, int consumers) {
    for (int i = 0; i < stages; ++i) {
      full[i].Init(loaders + 1);
      empty[i].Init(consumers);
      inputs[i].Init(1);
    }
    FenceBarrierInit();
  }
};

// Keeps what a loop over stages would compute again for each: where barriers lie in shared memory,
// and whether a thread is the one of its warp that arrives at them.
struct BarrierAddresses {
  uint32_t full;
  int first_lane;

  __device__ explicit BarrierAddresses(GroupedBarriers& barriers)
      : full(SharedAddress(&barriers.full[0])), first_lane(threadIdx.x % kWarpSize == 0) {
    asm volatile("" : "+r"(full), "+r"(first_lane));
  }
};

// Returns how many CTAs of a kernel share an SM; one with DenseTiles has an SM to itself.
constexpr int GroupedCtasPerSm(bool four_bit, int tile_tokens) {
  return tile_tokens <= 32 || (four_bit && tile_tokens <= 64) ? 2 : 1;
}

template <GroupedKind kOperands, int kTileTokens, DenseTiles kTiles = DenseTiles::kNone>
struct GroupedShape {
  static constexpr GroupedKind kKind = kOperands;
  static constexpr int kTokens = kTileTokens;
  static_assert(kTokens == 8 || kTokens == 16 || kTokens == 32 || kTokens == 64 ||
                (kTokens == kWideTokens &&
                 (kTiles == DenseTiles::kWide || kTiles == DenseTiles::kGroupWide)));
  static constexpr bool kQuantizes = kKind == GroupedKind::kFp8BlockOfBf16;
  static constexpr bool kBlocks = kKind == GroupedKind::kFp8Block || kQuantizes;
  static constexpr bool kFp8 = kKind == GroupedKind::kFp8 || kBlocks;
  static constexpr bool kFourBit = !kFp8 && kKind != GroupedKind::kBf16;
  static constexpr FourBitType kFourBitType = kKind == GroupedKind::kMxfp4 ? FourBitType::kMxfp4
                                              : kKind == GroupedKind::kInt4Affine
                                                  ? FourBitType::kInt4Affine
                                                  : FourBitType::kInt4;
  static constexpr int kGroup = kKind == GroupedKind::kInt4By128  ? 128
                                : kKind == GroupedKind::kInt4By64 ? 64
                                                                  : 32;
  static constexpr Type kType = kFp8 ? Type::kFp8 : Type::kBf16;  // of the products
  static constexpr bool kGroupTurns = kTiles == DenseTiles::kGroupTurns;
  static constexpr bool kGroupWide = kTiles == DenseTiles::kGroupWide;
  static constexpr bool kTakesTurns = kTiles == DenseTiles::kTurns || kGroupTurns;
  static constexpr bool kHasDenseTiles = kTiles != DenseTiles::kNone;
  // Teams with more tokens have no registers for a second tile: a CTA has one.
  static constexpr bool kHasOneTile = kTiles == DenseTiles::kTurns && kTokens > 16;
  static_assert(kFourBit || !kHasDenseTiles);
  // Whether wgmma multiplies, or mma.sync (grouped_four_bit.cuh).
  static constexpr bool kWgmma = !kFourBit || kTokens >= 64 || kHasDenseTiles;

  // Groups of four warps, 64 rows each. By kWideTokens each thread of kWide has twice the sums, and
  // there are registers for half of the groups.
  static constexpr int kRowGroups = kGroupWide                    ? 3
                                    : kTiles == DenseTiles::kWide ? (kTokens == kWideTokens ? 2 : 4)
                                    : kFourBit || kTokens <= 32   ? 1
                                                                  : 2;
  static constexpr int kRows = 64 * kRowGroups;
  // Teams of four warps that take turns at stages, and the blocks of 128 columns in a stage: each
  // thread unpacks 32 registers of a block before its team's turn. Where unpacking is what takes
  // the time, more teams are better than longer turns.
  static constexpr bool kTakesLongTurns = kTokens == 16 && kKind != GroupedKind::kMxfp4;
  static constexpr int kTeams = !kTakesTurns ? 1 : kTakesLongTurns ? 2 : 3;
  static constexpr int kFourBitBlocks = !kTakesTurns      ? 1
                                        : kTakesLongTurns ? 4
                                        : kTokens == 8    ? 3
                                                          : 2;
  static constexpr int kReaders = 4 * kRowGroups;  // warps that read a stage
  static constexpr int kMathThreads = kReaders * kTeams * kWarpSize;
  static constexpr int kLoadThreads = kTakesTurns ? 64 : kFourBit && !kGroupWide ? 32 : 128;
  static constexpr int kThreads = kMathThreads + kLoadThreads;
  static constexpr int kCtasPerSm = kHasDenseTiles ? 1 : GroupedCtasPerSm(kFourBit, kTokens);

  // With kGroupWide each thread starts with 128 registers, and the loading group gives up those
  // that the others take.
  static constexpr int kMathRegisters = 160, kLoadRegisters = 32;
  // The input rows that the copy engine brings at a time: with kGroupWide no more than there are.
  static constexpr int kBoxTokens = kGroupWide ? 32 : kTokens;

  // A stage has kChunks times 128 bytes of each input row.
  static constexpr int kChunks = 2 * kFourBitBlocks;
  static constexpr int kFourBitBlockBytes =
      FourBitFormat{.type = kFourBitType, .group = kGroup}.BlockBytes();
  static constexpr int kWeightBytes =
      kFourBit
          ? CeilDiv(kRowGroups * kFourBitBlocks * kFourBitBlockBytes, kSwizzleBytes) * kSwizzleBytes
          : kRows * kChunks * kChunk;
  static constexpr int kInputBytes = kTokens * kChunks * kChunk;
  // A chunk with block scales has two scales of the weights, the gate's and the other factor's (or
  // twice the same), and one of each token.
  static constexpr int kChunkScales = 2 + kTokens;
  static constexpr int kScaleBytes =
      kBlocks ? kChunks * kChunkScales * static_cast<int>(sizeof(float)) : 0;
  static constexpr int kStageBytes = kWeightBytes + kInputBytes + kScaleBytes;
  // The stages whose weights are under way before the inputs are: what an SM asks for stands in
  // line behind its copies, and 48 KB of them use all of the memory's rate.
  static constexpr int kEarlyStages = std::max(2, 48 * 1024 / kCtasPerSm / kWeightBytes);
  // The sums that teams hand on, behind the pipeline.
  static constexpr int kSumBytes = kTakesTurns ? 128 * kTokens / 2 * 4 : 0;
  // A tile's last stage brings what its sums are written by: the tile, the output's rows, and the
  // biases of 64 rows.
  static constexpr int kEndBytes = kGroupTurns ? 16 + kTokens * 4 + 64 * 4 : 0;
  static constexpr int kExtraBytes = kSumBytes + kMaxStages * kEndBytes;  // behind the pipeline
  static_assert(kInputBytes % kSwizzleBytes == 0 && kWeightBytes % kSwizzleBytes == 0);
  // The most that a CTA's pipeline may take. An SM has 227 KB, of which each CTA needs 1 KB itself
  // and up to 1 KB for barriers and alignment.
  static constexpr int kPipelineBytes =
      (kCtasPerSm == 1 ? 224 : 226 / kCtasPerSm - 2) * 1024 - kExtraBytes;
  static_assert(kPipelineBytes / kStageBytes >= kMinGroupedStages);
};

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_GROUPED_GROUPED_SHAPE_CUH_
