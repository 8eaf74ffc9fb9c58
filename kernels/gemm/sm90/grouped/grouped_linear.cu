#include "kernels/gemm/grouped_linear.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/arguments.h"
#include "kernels/gemm/sm90/grouped/dense_tiles.h"
#include "kernels/gemm/sm90/grouped/group_tiles.h"
#include "kernels/gemm/sm90/grouped/grouped_instances.h"
#include "kernels/gemm/sm90/grouped/grouped_shape.cuh"
#include "kernels/launch.cuh"

namespace millrace::kernels::sm90 {
namespace {

constexpr int kMostGatheredTokens = 64;  // of a tile of grouped_kernel.cuh

bool IsValidWeight(const GroupedWeight& weight) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (weight.data == nullptr || !IsAligned16(weight.data) || weight.groups < 1 ||
      weight.rows < 16 || weight.rows % 16 != 0 || weight.stride < kColumnPadding ||
      weight.stride % kColumnPadding != 0 || weight.rows > kMost / weight.groups ||
      weight.stride > kMost) {
    return false;
  }
  if (weight.four_bit.has_value()) {
    return weight.type == Type::kBf16 && weight.scaling == WeightScaling::kNone &&
           weight.four_bit->IsValid();
  }
  if (weight.type == Type::kBf16) return weight.scaling == WeightScaling::kNone;
  return weight.type == Type::kFp8 && weight.scaling != WeightScaling::kNone &&
         weight.scales != nullptr && IsAligned16(weight.scales);
}

bool IsValidInput(const GroupedLinearArgs& args) {
  const Activation& input = args.input;
  if (!kernels::IsValid(input, args.weight.stride) || input.stride != args.weight.stride) {
    return false;
  }
  if (input.type == Type::kBf16 && args.weight.scaling == WeightScaling::kBlock) {
    return args.config.tile_tokens <= kMostQuantizedTokens;
  }
  if (input.type != args.weight.type) return false;
  if (input.type == Type::kBf16) return true;
  if (args.weight.scaling != WeightScaling::kBlock) return input.scaling != Scaling::kTokenGroup;
  return input.scaling == Scaling::kTokenGroup && IsAligned16(input.scales);
}

bool IsValidOutput(const GroupedLinearArgs& args) {
  if (args.output == nullptr || !IsAligned16(args.output) || args.output_stride % 8 != 0) {
    return false;
  }
  if (args.gate == GroupedGate::kNone) {
    return args.output_scale == nullptr && args.output_type != Type::kFp8 &&
           args.output_stride >= args.weight.rows;
  }
  const Type type = args.output_scale != nullptr ? Type::kFp8 : Type::kBf16;
  return args.output_type == type && args.output_stride % kColumnPadding == 0 &&
         args.output_stride >= args.weight.rows / 2;
}

bool AreValidRows(const GroupedLinearArgs& args) {
  if (args.tokens < 0 || args.slots < 1) return false;
  const bool sorted = args.sorted_input;
  if (args.rows == nullptr) {
    return args.slots == 1 && args.weight.groups == 1 && !sorted && !args.sorted_output;
  }
  if (sorted != ReadsSorted(args.weight, args.config.tile_tokens) || (sorted && args.slots != 1) ||
      (args.sorted_output && !sorted)) {
    return false;
  }
  const GroupedRows& rows = *args.rows;
  return rows.order != nullptr && rows.offsets != nullptr && rows.tiles != nullptr &&
         IsAligned16(rows.tiles) && rows.tile_count != nullptr &&
         rows.tile_rows == args.config.tile_tokens && rows.groups == args.weight.groups &&
         rows.pairs >= 0 && rows.pairs <= int64_t{args.tokens} * args.slots;
}

// Returns the device's SMs, or an H200's where there is no device.
int Sms() {
  int device = 0, sms = 132;
  if (cudaGetDevice(&device) == cudaSuccess) {
    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  }
  return sms;
}

int64_t RowBlocks(const GroupedWeight& weight) {
  return CeilDiv<int64_t>(weight.rows, kFourBitRows);
}

int Pairs(const GroupedLinearArgs& args) {
  return args.rows == nullptr ? args.tokens : args.rows->pairs;
}

}  // namespace

bool IsValid(const GroupedLinearArgs& args) {
  if (!IsValidWeight(args.weight)) return false;
  const int64_t input_words = args.weight.stride / 8;  // at most, of 16 bytes
  const int tile = args.config.tile_tokens;
  return IsValidInput(args) && IsValidOutput(args) && AreValidRows(args) &&
         IsAligned16(args.bias) &&
         args.tokens * input_words <= std::numeric_limits<int32_t>::max() &&
         args.config.stages >= kMinGroupedStages && args.config.ctas >= 1 &&
         (tile == 8 || tile == 16 || tile == 32 || tile == 64 || tile == kPromptTile ||
          (tile == kWideTokens && args.weight.four_bit.has_value()));
}

GroupedKind GroupedKindOf(const GroupedLinearArgs& args) {
  const GroupedWeight& weight = args.weight;
  if (weight.four_bit.has_value()) {
    if (weight.four_bit->type == FourBitType::kMxfp4) return GroupedKind::kMxfp4;
    if (weight.four_bit->type == FourBitType::kInt4Affine) return GroupedKind::kInt4Affine;
    return weight.four_bit->group == 32   ? GroupedKind::kInt4By32
           : weight.four_bit->group == 64 ? GroupedKind::kInt4By64
                                          : GroupedKind::kInt4By128;
  }
  if (weight.type == Type::kBf16) return GroupedKind::kBf16;
  if (weight.scaling != WeightScaling::kBlock) return GroupedKind::kFp8;
  return args.input.type == Type::kBf16 ? GroupedKind::kFp8BlockOfBf16 : GroupedKind::kFp8Block;
}

GroupedParams GroupedParamsOf(const GroupedLinearArgs& args) {
  const GroupedWeight& weight = args.weight;
  const int64_t row_bytes = weight.stride * (weight.type == Type::kFp8 ? 1 : 2);
  const bool gated = args.gate != GroupedGate::kNone;
  return {
      .weight = {},
      .input_rows = {},
      .four_bit = static_cast<const uint8_t*>(weight.data),
      .four_bit_steps =
          weight.four_bit.has_value() ? weight.four_bit->Steps() : FourBitSteps::kLine,
      .unit = weight.four_bit.has_value() ? weight.four_bit->Unit() : 1,
      .weight_scales = weight.scales,
      .weight_scaling = weight.scaling,
      .block_scale_stride = BlockScaleStride(weight.stride),
      .row_blocks = static_cast<int>(CeilDiv<int64_t>(gated ? weight.rows / 2 : weight.rows, 128)),
      .input = static_cast<const uint8_t*>(args.input.data),
      .input_scales = args.input.scales,
      .input_scaling = args.input.scaling,
      .padded_tokens = static_cast<int>(PaddedTokens(args.tokens)),
      .input_words =
          static_cast<unsigned>(weight.stride * (args.input.type == Type::kFp8 ? 1 : 2) / 16),
      .groups = args.rows != nullptr ? *args.rows : GroupedRows{},
      .output_rows = args.rows != nullptr && !args.sorted_output ? args.rows->order : nullptr,
      .tokens = args.tokens,
      .slots = args.slots,
      .bias = args.bias,
      .output = {.data = args.output,
                 .stride = args.output_stride,
                 .fp32 = args.output_type == Type::kF32,
                 .gate = args.gate,
                 .scale = args.output_scale,
                 .rounds_factors = args.rounds_factors},
      .rows = static_cast<int>(weight.rows),
      .row_tiles = 0,
      .chunks = static_cast<int>(row_bytes / kChunk),
      .steps = 0,
      .stages = 0};
}

int GroupedStages(int wanted, int pipeline_bytes, int stage_bytes) {
  return std::min({wanted, kMaxStages, pipeline_bytes / stage_bytes});
}

unsigned GroupedCtas(const GroupedLinearArgs& args, int row_tiles) {
  const int tile = args.config.tile_tokens;
  const int most = args.rows == nullptr ? CeilDiv(args.tokens, tile)
                                        : MaxGroupTiles(args.rows->pairs, args.rows->groups, tile);
  return static_cast<unsigned>(std::min<int64_t>(args.config.ctas, int64_t{most} * row_tiles));
}

}  // namespace millrace::kernels::sm90

namespace millrace::kernels {

GroupedConfig GroupedConfigOf(const GroupedWeight& weight, int tile_tokens) {
  return {.tile_tokens = tile_tokens,
          .stages = sm90::kMaxStages,
          .ctas = sm90::GroupedCtasPerSm(weight.four_bit.has_value(), tile_tokens) * sm90::Sms()};
}

GroupedConfig DefaultGroupedConfig(const GroupedWeight& weight, int pairs) {
  if (weight.four_bit.has_value() && weight.groups > 1) {
    return GroupedConfigOf(weight, sm90::FastestGroupTokens(pairs, weight.groups));
  }
  int tile = 8;
  while (tile <= sm90::kMostGatheredTokens && pairs > MostGroupedPairs(weight.groups, tile))
    tile *= 2;
  return GroupedConfigOf(weight, tile > sm90::kMostGatheredTokens ? kPromptTile : tile);
}

int MixtureTileTokens(const GroupedWeight& gate_up, const GroupedWeight& down, int pairs) {
  return DefaultGroupedConfig(down.four_bit.has_value() ? gate_up : down, pairs).tile_tokens;
}

GroupedConfig DenseFourBitConfig(const GroupedWeight& weight, int tokens) {
  if (tokens <= sm90::kMostGatheredTokens) return DefaultGroupedConfig(weight, tokens);
  return GroupedConfigOf(weight, sm90::FastestDenseTokens(sm90::RowBlocks(weight), weight.stride,
                                                          tokens, sm90::Sms()));
}

bool ExpandingIsFaster(const GroupedWeight& weight, int tokens) {
  return sm90::ExpandingIsFaster(sm90::RowBlocks(weight), weight.stride, tokens, sm90::Sms());
}

cudaError_t LaunchGroupedLinear(const GroupedLinearArgs& args, cudaStream_t stream) {
  if (!sm90::IsValid(args)) return cudaErrorInvalidValue;
  if (!KernelsAwait()) return cudaErrorNotSupported;
  if (sm90::Pairs(args) == 0) return cudaSuccess;
  if (args.config.tile_tokens == kPromptTile) {
    return args.weight.four_bit.has_value() ? sm90::LaunchPromptFourBit(args, stream)
                                            : sm90::LaunchPromptPlain(args, stream);
  }
  switch (sm90::GroupedKindOf(args)) {
    case sm90::GroupedKind::kBf16:
      return sm90::LaunchGroupedBf16(args, stream);
    case sm90::GroupedKind::kFp8:
      return sm90::LaunchGroupedFp8(args, stream);
    case sm90::GroupedKind::kFp8Block:
      return sm90::LaunchGroupedFp8Block(args, stream);
    case sm90::GroupedKind::kFp8BlockOfBf16:
      return sm90::LaunchGroupedFp8BlockOfBf16(args, stream);
    case sm90::GroupedKind::kInt4By32:
      return sm90::LaunchGroupedInt4By32(args, stream);
    case sm90::GroupedKind::kInt4By64:
      return sm90::LaunchGroupedInt4By64(args, stream);
    case sm90::GroupedKind::kInt4By128:
      return sm90::LaunchGroupedInt4By128(args, stream);
    case sm90::GroupedKind::kMxfp4:
      return sm90::LaunchGroupedMxfp4(args, stream);
    case sm90::GroupedKind::kInt4Affine:
      return sm90::LaunchGroupedInt4Affine(args, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace millrace::kernels
