// The ops of CudaOps of recurrent layers.
#include <algorithm>
#include <cstdint>
#include <optional>

#include "executors/cuda/cuda_buffer.h"
#include "executors/cuda/cuda_ops.h"
#include "executors/cuda/operand_bytes.h"
#include "executors/models/model_state.h"
#include "kernels/recurrent/delta_inputs.h"
#include "kernels/recurrent/delta_rule.h"
#include "kernels/recurrent/delta_types.h"
#include "kernels/recurrent/gated_norm.h"
#include "kernels/recurrent/mamba2_inputs.h"
#include "kernels/recurrent/mamba2_norm.h"
#include "kernels/recurrent/mamba2_scan.h"
#include "kernels/recurrent/mamba2_types.h"
#include "kernels/recurrent/recurrent_rows.h"
#include "kernels/recurrent/short_convolution.h"

namespace millrace::cuda {
namespace {

constexpr int kMaxValueHeads = 64;  // of the kernel of their norms
constexpr int64_t kFloat = sizeof(float);

static_assert(CudaPages(16, false, 0).delta_tokens == kernels::kDeltaBlockTokens,
              "a slot has no room for the tokens of a block");

kernels::DeltaHeads HeadsOf(const GatedDeltaSpec& spec) {
  return {
      .key_heads = spec.key_heads, .value_heads = spec.value_heads, .interleaved = spec.in_turns};
}

kernels::Mamba2Heads HeadsOf(const Mamba2Spec& spec) {
  return {.heads = spec.heads,
          .head_size = spec.head_size,
          .groups = spec.groups,
          .state_size = spec.state_size};
}

// Returns the columns of a product from `first` on.
kernels::Product ColumnsFrom(kernels::Product product, int64_t first) {
  product.data += first;
  if (product.channel_scales != nullptr) product.channel_scales += first;
  return product;
}

// Describes a step's rows. Those with tokens come first (StepPacker), so that there are at most as
// many of them as tokens, however many rows a graph is for.
kernels::RecurrentRows RowsOf(const CudaStepInput& step, const StepBuffers& buffers) {
  const kernels::StepArrays& arrays = buffers.arrays;
  return {.rows = std::min(step.rows, step.tokens),
          .max_tokens = step.tokens,
          .max_row_tokens = std::min(step.max_row_tokens, step.tokens),
          .row_first = arrays.row_first,
          .row_start = arrays.row_start,
          .row_slot = arrays.row_slot,
          .positions = arrays.positions,
          .slots = arrays.slots};
}

}  // namespace

struct CudaOps::DeltaMemory {
  CudaRows keys_queries;
  CudaRows values;
  CudaRows gates;

  kernels::DeltaOperands operands() const {
    return {.keys_queries = keys_queries.floats(),
            .values = values.floats(),
            .gates = reinterpret_cast<kernels::DeltaGates*>(gates.data())};
  }
};

kernels::RecurrentState CudaOps::StatesOf(int32_t layer) const {
  if (measures_) return {};
  const KvArena::Pool& pool = c_.kv.pools[c_.kv.state.placements[layer].group];
  return {.data = reinterpret_cast<float*>(c_.kv.StateData(layer)),
          .slot_stride = pool.place_bytes / kFloat};
}

// Refuses what the kernels of gated delta rules do not take.
void CudaOps::CheckDelta(const GatedDeltaSpec& spec, const GatedDeltaWeights& weights) {
  Require(spec.key_size == kernels::kDeltaHeadSize, "linear_key_head_dim", spec.key_size,
          kernels::kDeltaHeadSize);
  Require(spec.value_size == kernels::kDeltaHeadSize, "linear_value_head_dim", spec.value_size,
          kernels::kDeltaHeadSize);
  const int group = spec.value_heads / spec.key_heads;
  Require(group <= kernels::kMaxDeltaGroup, "linear_num_value_heads of a key head", group, "up to ",
          kernels::kMaxDeltaGroup);
  Require(spec.value_heads <= kMaxValueHeads, "linear_num_value_heads of a rank", spec.value_heads,
          "up to ", kMaxValueHeads);
  Require(spec.convolution.width == kernels::kConvolutionTokens, "linear_conv_kernel_dim",
          spec.convolution.width, kernels::kConvolutionTokens);
  for (const LinearId linear : {weights.qkvz, weights.beta_alpha}) {
    Require(c_.weights->Linear(linear).bias == nullptr, "bias of a gated delta rule's linear",
            "present", "none");
  }
}

void CudaOps::MakeDeltaOperands(int32_t layer, const GatedDeltaSpec& spec, const CudaProduct& qkvz,
                                const CudaProduct& beta_alpha, const DeltaMemory& memory) {
  const kernels::DeltaHeads heads = HeadsOf(spec);
  const kernels::RecurrentRows rows = RowsOf(*step_, *c_.buffers);
  const int64_t in = 2 * (heads.channels() + 2 * spec.value_heads);
  const int64_t out = kFloat * heads.channels() +
                      static_cast<int64_t>(sizeof(kernels::DeltaGates)) * spec.key_heads;
  const int64_t states = 2 * kFloat * kernels::ConvolutionFloats(heads);
  Run("inputs of a gated delta rule", {step_->tokens * (in + out) + rows.rows * states}, [&] {
    return kernels::LaunchDeltaInputs({.heads = heads,
                                       .rows = rows,
                                       .qkv = qkvz.values,
                                       .beta_alpha = beta_alpha.values,
                                       .convolution = c_.weights->Vector(spec.convolution.weights),
                                       .rates = c_.weights->Vector(spec.a),
                                       .time_bias = c_.weights->Vector(spec.time_bias),
                                       .state = StatesOf(layer),
                                       .out = memory.operands(),
                                       .log_rates = !spec.converted},
                                      stream_);
  });
}

void CudaOps::RunDelta(int32_t layer, const GatedDeltaSpec& spec, const DeltaMemory& memory) {
  const kernels::DeltaHeads heads = HeadsOf(spec);
  const kernels::RecurrentRows rows = RowsOf(*step_, *c_.buffers);
  // Taken last and returned first, so that a step without it takes the rest as one with it does.
  CudaRows factors;
  if (step_->max_row_tokens > 1) {
    const int64_t windows =
        RoundUp(kernels::LinearCapacity(step_->tokens), kernels::kDeltaBlockTokens) /
        kernels::kDeltaBlockTokens;
    factors = Allocate(sizeof(kernels::DeltaWeights) * windows * spec.value_heads, step_->tokens);
  }
  const int64_t operands = kFloat * (heads.channels() + heads.value_width()) +
                           static_cast<int64_t>(sizeof(kernels::DeltaGates)) * spec.key_heads;
  // A decoding row reads its heads' states, and writes them once in a block.
  const int64_t states = kFloat * heads.value_width() * kernels::kDeltaHeadSize;
  Run("gated delta rule", {step_->tokens * operands + rows.rows * states}, [&] {
    return kernels::LaunchDeltaRule(
        {.heads = heads,
         .rows = rows,
         .operands = memory.operands(),
         .state = StatesOf(layer),
         .out = memory.values.floats(),
         .weights = reinterpret_cast<kernels::DeltaWeights*>(factors.data())},
        stream_);
  });
}

LinearInput CudaOps::GatedDelta(int32_t layer, const GatedDeltaSpec& spec,
                                const GatedDeltaWeights& weights, const LinearInput& x,
                                Consumers consumers) {
  CheckDelta(spec, weights);
  const kernels::DeltaHeads heads = HeadsOf(spec);
  const int tokens = step_->tokens;
  const CudaProduct qkvz = Multiply(c_.weights->Linear(weights.qkvz), x);
  DeltaMemory memory;
  {
    const CudaProduct beta_alpha = Multiply(c_.weights->Linear(weights.beta_alpha), x);
    const int64_t key_width = int64_t{spec.key_heads} * kernels::kDeltaHeadSize;
    memory.keys_queries = TakeRows(kFloat * 2 * key_width, tokens);
    memory.values = TakeRows(kFloat * heads.value_width(), tokens);
    memory.gates = TakeRows(sizeof(kernels::DeltaGates) * spec.key_heads, tokens);
    MakeDeltaOperands(layer, spec, qkvz, beta_alpha, memory);
  }
  auto input = TakeInput(consumers, tokens);
  RunDelta(layer, spec, memory);
  const kernels::Product z = ColumnsFrom(qkvz.values, heads.channels());
  const CudaNorm& norm = c_.weights->Norm(spec.norm);
  const int64_t in = (kFloat + 2) * heads.value_width();
  for (const CudaInputForm& out : input->forms) {
    Run("norm of a gated delta rule", {tokens * in + BytesOf(out.values, tokens)}, [&] {
      return kernels::LaunchGatedNorm({.x = memory.values.floats(),
                                       .gate = z,
                                       .weight = norm.weight,
                                       .epsilon = norm.epsilon,
                                       .tokens = tokens,
                                       .heads = spec.value_heads,
                                       .out = out.values},
                                      stream_);
    });
  }
  return input;
}

// The kernel updates the states, so that it runs once, for one form of its output.
LinearInput CudaOps::ShortConvolution(int32_t layer, const ShortConvolutionSpec& spec,
                                      LinearId projection, const LinearInput& in,
                                      Consumers consumers) {
  const ConvolutionSpec& convolution = spec.convolution;
  Require(spec.channels <= kernels::kMaxShortConvolutionChannels && spec.channels % 8 == 0,
          "number of a short convolution's channels", spec.channels, "multiples of 8 up to ",
          kernels::kMaxShortConvolutionChannels);
  Require(convolution.width <= kernels::kMaxShortConvolutionWidth, "conv_L_cache",
          convolution.width, "up to ", kernels::kMaxShortConvolutionWidth);
  const CudaLinear& linear = c_.weights->Linear(projection);
  const int tokens = step_->tokens;
  const CudaProduct bcx = Multiply(linear, in);
  auto input = TakeInput(consumers, tokens);
  Require(input->forms.size() == 1, "number of forms of a short convolution's output",
          input->forms.size(), 1);
  const kernels::Activation& out = input->forms.front().values;
  const kernels::RecurrentRows rows = RowsOf(*step_, *c_.buffers);
  const int64_t products = int64_t{3} * 2 * spec.channels;
  const int64_t states =
      2 * kFloat * kernels::ShortConvolutionFloats(convolution.width, spec.channels);
  Run("short convolution", {tokens * products + rows.rows * states + BytesOf(out, tokens)}, [&] {
    const std::optional<VectorId>& bias = convolution.bias;
    return kernels::LaunchShortConvolution(
        {.rows = rows,
         .channels = spec.channels,
         .width = convolution.width,
         .bcx = bcx.values,
         .bcx_bias = linear.bias,
         .weights = c_.weights->Vector(convolution.weights),
         .bias = bias.has_value() ? c_.weights->Vector(*bias) : nullptr,
         .state = StatesOf(layer),
         .out = out},
        stream_);
  });
  return input;
}

struct CudaOps::Mamba2Memory {
  CudaRows x;
  CudaRows bc;
  CudaRows gates;

  kernels::Mamba2Operands operands() const {
    return {.x = x.floats(),
            .bc = bc.floats(),
            .gates = reinterpret_cast<kernels::Mamba2Gates*>(gates.data())};
  }
};

// Refuses what the kernels of Mamba-2 layers do not take.
void CudaOps::CheckMamba2(const Mamba2Spec& spec, LinearId projection) {
  Require(spec.state_size == 128 || spec.state_size == 256, "mamba_d_state", spec.state_size,
          "128 and 256");
  Require(spec.head_size % kernels::kMamba2HeadStep == 0, "mamba_d_head", spec.head_size,
          "multiples of ", kernels::kMamba2HeadStep);
  Require(spec.convolution.width == kernels::kMamba2Width, "mamba_d_conv", spec.convolution.width,
          kernels::kMamba2Width);
  Require(c_.weights->Linear(projection).bias == nullptr, "mamba_proj_bias", "present", "none");
  const int inner = spec.heads * spec.head_size;
  Require(inner <= kernels::kMaxMamba2NormWidth, "mamba_n_heads * mamba_d_head of a rank", inner,
          "up to ", kernels::kMaxMamba2NormWidth);
  static_assert(kernels::kMamba2HeadStep % kernels::kMamba2NormStep == 0, "norms of whole heads");
}

void CudaOps::MakeMamba2Operands(int32_t layer, const Mamba2Spec& spec, const CudaProduct& product,
                                 const Mamba2Memory& memory) {
  const kernels::Mamba2Heads heads = HeadsOf(spec);
  const kernels::RecurrentRows rows = RowsOf(*step_, *c_.buffers);
  const std::optional<VectorId>& bias = spec.convolution.bias;
  const int64_t in = 2 * (heads.channels() + heads.heads);
  const int64_t out =
      kFloat * heads.channels() + static_cast<int64_t>(sizeof(kernels::Mamba2Gates)) * heads.heads;
  const int64_t states = 2 * kFloat * kernels::Mamba2HeadsAt(heads);
  Run("inputs of Mamba-2", {step_->tokens * (in + out) + rows.rows * states}, [&] {
    return kernels::LaunchMamba2Inputs(
        {.heads = heads,
         .rows = rows,
         .xbc = ColumnsFrom(product.values, heads.inner()),
         .dt = ColumnsFrom(product.values, int64_t{heads.inner()} + heads.channels()),
         .convolution = c_.weights->Vector(spec.convolution.weights),
         .bias = bias.has_value() ? c_.weights->Vector(*bias) : nullptr,
         .rates = c_.weights->Vector(spec.a),
         .time_bias = c_.weights->Vector(spec.time_bias),
         .min_step = spec.least_step,
         .max_step = spec.largest_step,
         .log_rates = !spec.converted,
         .state = StatesOf(layer),
         .out = memory.operands()},
        stream_);
  });
}

void CudaOps::RunMamba2(int32_t layer, const Mamba2Spec& spec, const Mamba2Memory& memory) {
  const kernels::Mamba2Heads heads = HeadsOf(spec);
  const kernels::RecurrentRows rows = RowsOf(*step_, *c_.buffers);
  const int64_t operands = kFloat * (heads.channels() + heads.inner()) +
                           static_cast<int64_t>(sizeof(kernels::Mamba2Gates)) * heads.heads;
  const int64_t states = 2 * kFloat * heads.inner() * heads.state_size;
  Run("scan of Mamba-2", {step_->tokens * operands + rows.rows * states}, [&] {
    return kernels::LaunchMamba2Scan(
        {.heads = heads,
         .rows = rows,
         .operands = memory.operands(),
         .skip = c_.weights->Vector(spec.d),
         .state = StatesOf(layer),
         .out = memory.x.floats(),
         .block_values = kernels::DefaultMamba2Block(heads, rows.rows)},
        stream_);
  });
}

kernels::Mamba2RankSquares CudaOps::GatherMamba2Squares(const Mamba2Spec& spec,
                                                        const kernels::Mamba2Outputs& outputs,
                                                        CudaRows& memory) {
  if (!spec.shares_groups) return {};
  const int ranks = c_.weights->rank.size;
  // The same of all ranks. One that heads were filled up for may have groups behind the last one.
  const int record = static_cast<int>(RoundUp(spec.all_groups + spec.groups, 2));
  const int tokens = outputs.tokens;
  memory = TakeRows(kFloat * record * (1 + ranks), tokens);
  float* const own = memory.floats();
  float* const all = own + int64_t{record} * tokens;
  const int64_t bytes = (kFloat + 2) * outputs.width + kFloat * record;
  Run("squares of Mamba-2", {tokens * bytes}, [&] {
    return kernels::LaunchMamba2Squares(
        {.outputs = outputs, .first_group = spec.first_group, .record = record, .squares = own},
        stream_);
  });
  GatherRecords(own, record, tokens, all);
  return {.squares = all,
          .ranks = ranks,
          .record = record,
          .first_group = spec.first_group,
          .group_width = static_cast<int>(c_.weights->Norm(spec.norm).all / spec.all_groups)};
}

LinearInput CudaOps::Mamba2(int32_t layer, const Mamba2Spec& spec, LinearId projection,
                            const LinearInput& in, Consumers consumers) {
  CheckMamba2(spec, projection);
  const kernels::Mamba2Heads heads = HeadsOf(spec);
  const int tokens = step_->tokens;
  const CudaProduct product = Multiply(c_.weights->Linear(projection), in);
  const Mamba2Memory memory = {
      .x = TakeRows(kFloat * heads.inner(), tokens),
      .bc = TakeRows(kFloat * 2 * heads.state_width(), tokens),
      .gates = TakeRows(sizeof(kernels::Mamba2Gates) * heads.heads, tokens)};
  MakeMamba2Operands(layer, spec, product, memory);
  auto input = TakeInput(consumers, tokens);
  RunMamba2(layer, spec, memory);
  const kernels::Mamba2Outputs outputs = {.x = memory.x.floats(),
                                          .gate = product.values,
                                          .tokens = tokens,
                                          .width = heads.inner(),
                                          .group_width = heads.inner() / heads.groups};
  CudaRows squares;
  const kernels::Mamba2RankSquares ranks = GatherMamba2Squares(spec, outputs, squares);
  const CudaNorm& norm = c_.weights->Norm(spec.norm);
  const int64_t bytes = (kFloat + 2) * heads.inner();
  for (const CudaInputForm& out : input->forms) {
    Run("norm of Mamba-2", {tokens * bytes + BytesOf(out.values, tokens)}, [&] {
      return kernels::LaunchMamba2Norm({.outputs = outputs,
                                        .weight = norm.weight,
                                        .epsilon = norm.epsilon,
                                        .out = out.values,
                                        .ranks = ranks},
                                       stream_);
    });
  }
  return input;
}

}  // namespace millrace::cuda
