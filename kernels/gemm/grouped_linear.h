// Grouped linears: rows of tokens that belong to groups (a mixture's experts), each group with a
// weight of its own, in BF16, FP8 and four bits; with one group it is a linear with four-bit
// weights. The kernels are for sm_90a (kernel_table.h: kGroupedLinear), and there are two of them.
// With tiles of up to 64 rows (sm90/grouped/grouped_kernel.cuh) rows may lie anywhere: it gathers
// them. With tiles of kPromptTile rows (sm90/grouped/prompt_kernel.cuh), for prompts, and with four
// bits, at any number of rows, they lie sorted by group. A mixture's layer is then
//
//   LaunchQuantize of x (FP8), then LaunchGatherRows with `order`: x in the order of the groups
//   gate and up with sorted_input and sorted_output, slots 1 and `tokens` the number of pairs
//   LaunchQuantize of its output (FP8)
//   down with sorted_input: writes each pair's row to its place
//
// Exact: K is summed in sequence and unsplit, in the order and with the roundings of the dense
// linears (linear.h): BF16 in one sum of the tensor cores, FP8 in sums of 128 products that are
// added in fp32 (with block scales, fma(sum, input scale * weight scale, total)), four bits like
// BF16 on the weight's values (four_bit.h). wgmma's sums do not depend on its other columns nor on
// how many there are, so an output's bits depend on its own row of input and on its group's weight:
// not on the other rows, not on the tiles, not on how rows are divided among groups.
//
// The epilogue computes, in fp32, p = fma(sum * input scale, weight scale, bias), and then stores p
// or joins the factors of a gated linear, rounded once (with rounds_factors each factor, too).
// Reads each weight once for each tile of a group's rows: tiles of one group that share a part of
// the weight are neighbours in time, so that all but one find it in the L2 cache. Launched for
// programmatic dependent launch (launch.cuh).
//
// Ideas: weights as wgmma's 64-row side for few tokens (TurboMind), a ring of stages that never
// drains between tiles (CUTLASS's persistent grouped GEMM), weights unpacked into wgmma's registers
// (Machete), gate and up interleaved so that one thread has both (MonoMoE).
#ifndef MILLRACE_KERNELS_GEMM_GROUPED_LINEAR_H_
#define MILLRACE_KERNELS_GEMM_GROUPED_LINEAR_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

#include "kernels/gemm/four_bit.h"
#include "kernels/gemm/grouped.h"
#include "kernels/types.h"

namespace millrace::kernels {

// The weights of all groups, one behind the other, constant while steps run.
struct GroupedWeight {
  // BF16 or FP8: [groups][rows][stride], 16-byte aligned. Four bits: [groups] of
  // four_bit->Bytes(rows, stride).
  const void* data;
  Type type;  // kBf16 or kFp8; kBf16 with four_bit
  WeightScaling scaling;
  int groups;
  int64_t rows;    // of a group; a multiple of 16
  int64_t stride;  // a multiple of kColumnPadding
  // kTensor: [groups]. kChannel: [groups][rows], by physical row. kBlock, 16-byte aligned: [groups]
  // of [blocks of rows][BlockScaleStride(stride)]; of a gated linear [groups][2][ceil(rows / 2 /
  // 128)] [BlockScaleStride(stride)], the gate's blocks and then those of the other factor.
  const float* scales = nullptr;
  std::optional<FourBitFormat> four_bit = std::nullopt;
};

// How the last step joins a gated linear's factors; the gate's rows and the other factor's (up) lie
// as GateLayout::kInterleaved says.
enum class GroupedGate : uint8_t {
  kNone,          // they are stored
  kSilu,          // gate / (1 + exp(-gate)) * up
  kGeluTanh,      // gelu(gate) * up, by its tanh (arXiv:1606.08415)
  kClampedSwish,  // g / (1 + exp(-1.702 g)) * (u + 1): g = min(gate, 7), u = up within -7 and 7
};

// How the product is divided. None of it changes a bit of the result.
struct GroupedConfig {
  // 8, 16, 32, 64 or kPromptTile: GroupedRows::tile_rows; kWideTokens (sm90/grouped/dense_tiles.h)
  // for four bits alone.
  int tile_tokens;
  int stages;  // of the pipeline, at least 4; fewer where they do not fit
  int ctas;    // at most; the SMs that they fill also choose a dense linear's kernel

  friend bool operator==(const GroupedConfig&, const GroupedConfig&) = default;
};

inline constexpr int kPromptTile = 192;
inline constexpr int kMostQuantizedTokens = 8;

// Returns whether rows by group lie in the order of the groups: for prompts, and with four bits,
// where the copy engine brings them (LaunchGatherRows sorts).
constexpr bool ReadsSorted(const GroupedWeight& weight, int tile_tokens) {
  return tile_tokens == kPromptTile || weight.four_bit.has_value();
}

struct GroupedLinearArgs {
  GroupedWeight weight;
  // Null: one group, whose rows are the `tokens` in sequence. Else rows->groups is weight.groups.
  const GroupedRows* rows;
  int tokens;  // of the input
  // Pair p reads row p / slots of the input and writes row p of the output: slots is the number of
  // experts a token has where tokens come in, and 1 where each pair has a row of its own. 1 without
  // `rows`, and with sorted_input.
  int slots;
  // Pair order[i] reads row i of the input, or writes row i of the output. With `rows`, where
  // ReadsSorted says so, the input must be sorted and the output may be; else neither is.
  bool sorted_input = false;
  bool sorted_output = false;
  // BF16 (also for four bits), or FP8: kTensor or kToken; kTokenGroup where the weight has kBlock,
  // with 16-byte aligned scales for PaddedTokens(tokens). Such a weight may also have inputs in
  // BF16, where config.tile_tokens is at most kMostQuantizedTokens: they are quantized on their
  // way, with the bits of LaunchQuantize with kTokenGroup.
  Activation input;
  // [groups][weight.rows], by physical row, 16-byte aligned; null: none
  const float* bias = nullptr;
  GroupedGate gate = GroupedGate::kNone;
  // Rounds the factors of a gated linear to BF16 before it joins them: the bits are then those of
  // LaunchGatedActivation on the linear's output, as a dense linear's are (linear.h).
  bool rounds_factors = false;
  // [pairs][output_stride], 16-byte aligned: BF16 or fp32, with at least weight.rows; of a gated
  // linear weight.rows / 2 in rows of a multiple of kColumnPadding, which are filled with zeros:
  // BF16, or FP8 where `output_scale` is not null.
  void* output;
  Type output_type;
  int64_t output_stride;  // elements; a multiple of 8
  const float* output_scale =
      nullptr;  // [1], read: the FP8 output is value / scale by fp8.cuh's rule
  GroupedConfig config;
};

// Returns the most rows for which DefaultGroupedConfig chooses tiles of up to `tile_tokens`, at
// most 64: a tile should hold the rows of nearly every group, about twice as many as one has on
// average, but of a single group all. For groups in four bits sm90/grouped/group_tiles.h chooses
// instead.
constexpr int64_t MostGroupedPairs(int groups, int tile_tokens) {
  return groups == 1 ? tile_tokens : int64_t{tile_tokens} * groups / 2;
}

// Returns the config with tiles of so many tokens.
GroupedConfig GroupedConfigOf(const GroupedWeight& weight, int tile_tokens);

// Returns the config for `pairs` rows that fall on the weight's groups.
GroupedConfig DefaultGroupedConfig(const GroupedWeight& weight, int pairs);

// Returns the tokens of the tiles of `pairs` rows that both linears of a mixture's experts take:
// only four-bit weights take tiles of kWideTokens, and one of the two may have four bits alone.
int MixtureTileTokens(const GroupedWeight& gate_up, const GroupedWeight& down, int pairs);

// Returns the config of a dense linear with four-bit weights, for the rows of `tokens` tokens.
GroupedConfig DenseFourBitConfig(const GroupedWeight& weight, int tokens);

// Returns whether expanding such a weight to BF16 (four_bit.h) is faster than the kernels here.
bool ExpandingIsFaster(const GroupedWeight& weight, int tokens);

// Writes the rows of the pairs in `rows` (or all tokens) alone. cudaErrorInvalidValue where the
// arguments violate what stands above; cudaErrorNotSupported where the device is not an sm_90a.
cudaError_t LaunchGroupedLinear(const GroupedLinearArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_GEMM_GROUPED_LINEAR_H_
