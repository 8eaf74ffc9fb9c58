// A mixture of experts, and the linears that the grouped linear runs.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <variant>

#include "executors/cuda/cuda_buffer.h"
#include "executors/cuda/cuda_ops.h"
#include "executors/cuda/operand_bytes.h"
#include "kernels/elementwise/gather_rows.h"
#include "kernels/elementwise/quantize.h"
#include "kernels/gemm/grouped_linear.h"
#include "kernels/moe/assign.h"
#include "kernels/moe/combine.h"
#include "kernels/moe/route.h"

namespace millrace::cuda {
namespace {

using kernels::GroupedGate;

GroupedGate GateOf(std::optional<GateFunction> function) {
  if (!function.has_value()) return GroupedGate::kNone;
  switch (*function) {
    case GateFunction::kSilu:
      return GroupedGate::kSilu;
    case GateFunction::kGeluTanh:
      return GroupedGate::kGeluTanh;
    case GateFunction::kGelu:  // CheckMixture refuses these
    case GateFunction::kSquaredRelu:
    case GateFunction::kClampedSwish:
      break;
  }
  return GroupedGate::kClampedSwish;
}

// The experts that are expected to have one of the tokens, if every expert is equally likely.
double ExpectedExperts(const ExpertsLinear& linear, int tokens) {
  const double share = static_cast<double>(linear.chosen) / linear.all_experts;
  return linear.weight.groups * (1 - std::pow(1 - share, tokens));
}

// Returns the scaling of the rows that a grouped linear multiplies with tiles of so many rows. With
// few it quantizes rows in BF16 itself: more would be quantized once for each tile of the weight.
kernels::Scaling TileScaling(const CudaLinear& linear, int tile_rows) {
  const bool quantizes = linear.input == kernels::Scaling::kTokenGroup;
  return quantizes && tile_rows <= kernels::kMostQuantizedTokens ? kernels::Scaling::kNone
                                                                 : linear.input;
}

// Returns whether experts read rows that lie in the order of the experts.
bool ReadsSorted(const CudaLinear& experts, const kernels::GroupedRows& rows) {
  return kernels::ReadsSorted(experts.experts().weight, rows.tile_rows);
}

}  // namespace

kernels::Scaling InputScaling(const CudaLinear& linear) {
  const bool quantizes = std::holds_alternative<ExpertsLinear>(linear.runner) &&
                         linear.input == kernels::Scaling::kTokenGroup;
  return quantizes ? kernels::Scaling::kNone : linear.input;
}

int64_t CudaOps::TouchedBytes(const ExpertsLinear& linear, int tokens) const {
  const double touched =
      mixture_ < touched_.size() ? touched_[mixture_] : ExpectedExperts(linear, tokens);
  return static_cast<int64_t>(touched * static_cast<double>(BytesOf(linear.weight)) /
                              linear.weight.groups);
}

void CudaOps::MultiplyFourBit(const FourBitLinear& linear, const kernels::Activation& x, int tokens,
                              std::optional<GateFunction> gate, const kernels::Activation& out) {
  const kernels::GroupedWeight& weight = linear.weight;
  Run("grouped linear", {BytesOf(weight) + BytesOf(x, tokens) + BytesOf(out, tokens)}, [&] {
    return kernels::LaunchGroupedLinear(
        {.weight = weight,
         .rows = nullptr,
         .tokens = tokens,
         .slots = 1,
         .input = x,
         .gate = GateOf(gate),
         .rounds_factors = true,
         .output = out.data,
         .output_type = out.type,
         .output_stride = out.stride,
         .output_scale = out.type == kernels::Type::kFp8 ? out.scales : nullptr,
         .config = kernels::DenseFourBitConfig(weight, tokens)},
        stream_);
  });
}

void CudaOps::MultiplyExperts(const CudaLinear& linear, const kernels::Activation& x, int tokens,
                              int slots, const kernels::GroupedRows& rows,
                              std::optional<GateFunction> gate, const kernels::Activation& out,
                              bool sorted_output) {
  const ExpertsLinear& experts = linear.experts();
  const int pairs = rows.pairs;
  const int64_t weight_bytes = TouchedBytes(experts, pairs / experts.chosen);
  Run("grouped linear", {weight_bytes + BytesOf(x, tokens) + BytesOf(out, pairs)}, [&] {
    return kernels::LaunchGroupedLinear(
        {.weight = experts.weight,
         .rows = &rows,
         .tokens = tokens,
         .slots = slots,
         .sorted_input = ReadsSorted(linear, rows),
         .sorted_output = sorted_output,
         .input = x,
         .bias = linear.bias,
         .gate = GateOf(gate),
         .output = out.data,
         .output_type = out.type,
         .output_stride = out.stride,
         .output_scale = out.type == kernels::Type::kFp8 ? out.scales : nullptr,
         .config = kernels::GroupedConfigOf(experts.weight, rows.tile_rows)},
        stream_);
  });
}

// Each token's experts, and their rows by expert.
struct CudaOps::Routes {
  CudaRows memory;
  float* logits;  // [tokens, the router's rows]
  float* scores;  // [tokens, chosen]
  int32_t* ids;   // [tokens, chosen]
  kernels::GroupedRows rows;
};

CudaOps::Routes CudaOps::Route(const MixtureWeights& weights, const RouterConfig& spec,
                               const LinearInput& x) {
  const CudaLinear& router = c_.weights->Linear(weights.router);
  const ExpertsLinear& experts = c_.weights->Linear(weights.gate_up).experts();
  const kernels::Activation& in = FormFor(router, x).values;
  const int tokens = step_->tokens;
  const int pairs = tokens * spec.chosen;
  const int tile = kernels::MixtureTileTokens(
      experts.weight, c_.weights->Linear(weights.down).experts().weight, pairs);
  // A token takes memory for ids, scores and the order of its pairs, for the tiles that these may
  // make, and for logits.
  const size_t chosen = spec.chosen;
  const size_t words = chosen * (3 + 2 * sizeof(kernels::GroupTile) / 4) + router.rows;
  Routes routes{.memory = TakeRows(words * 4, tokens),
                .logits = nullptr,
                .scores = nullptr,
                .ids = nullptr,
                .rows = {}};
  const int64_t capacity = kernels::LinearCapacity(tokens);
  uint8_t* next = routes.memory.data();
  const auto take = [&](size_t bytes_of_token) {
    return std::exchange(next, next + bytes_of_token * capacity);
  };
  routes.rows = {
      .order = nullptr,
      .offsets = c_.group_offsets,
      .tiles = reinterpret_cast<kernels::GroupTile*>(take(chosen * 2 * sizeof(kernels::GroupTile))),
      .tile_count = c_.group_offsets + kernels::kMaxAssignedGroups + 1,
      .tile_rows = tile,
      .pairs = pairs,
      .groups = experts.weight.groups};
  routes.rows.order = reinterpret_cast<int32_t*>(take(chosen * 4));
  auto* const ids = routes.ids = reinterpret_cast<int32_t*>(take(chosen * 4));
  routes.scores = reinterpret_cast<float*>(take(chosen * 4));
  routes.logits = reinterpret_cast<float*>(take(router.rows * size_t{4}));
  const kernels::AssignArgs assign = {
      .ids = ids,
      .first_expert = experts.first_expert,
      .rows = routes.rows,
      .touched = c_.touched_experts != nullptr ? c_.touched_experts + mixture_ : nullptr};
  const bool at_once = pairs <= kernels::kFewPairs;
  const auto& norm = static_cast<const CudaLinearInput&>(*x).norm;
  const int64_t norm_bytes = norm.has_value() ? int64_t{14} * norm->width : 0;
  Run("route", {BytesOf(router.weight) + BytesOf(in, tokens) + norm_bytes}, [&] {
    return kernels::LaunchRoute(
        {.x = static_cast<const kernels::Bf16*>(in.data),
         .x_stride = in.stride,
         .weight = router.weight.data,
         .weight_type = router.weight.type,
         .bias = router.bias,
         .correction = std::get<RouterLinear>(router.runner).correction,
         .tokens = tokens,
         .hidden = router.columns,
         .experts = spec.experts,
         .rows = router.rows,
         .scores = spec.scores == RouterConfig::Scores::kSoftmax ? kernels::RouterScores::kSoftmax
                                                                 : kernels::RouterScores::kSigmoid,
         .chosen = spec.chosen,
         .groups = spec.groups,
         .chosen_groups = spec.chosen_groups,
         .renormalize = spec.renormalize,
         .factor = static_cast<float>(spec.factor),
         .logits = routes.logits,
         .ids = ids,
         .token_scores = routes.scores,
         .assign = at_once ? &assign : nullptr,
         .norm = norm.has_value() ? &*norm : nullptr,
         .counters = c_.route_counters},
        stream_);
  });
  if (!at_once) {
    Run("assign", {int64_t{4} * pairs}, [&] { return kernels::LaunchAssign(assign, stream_); });
  }
  return routes;
}

CudaInputForm CudaOps::SortByExpert(const CudaLinear& experts, const kernels::Activation& x,
                                    int slots, const kernels::GroupedRows& rows) {
  const int x_rows = rows.pairs / slots;
  CudaInputForm sorted = TakeForm(experts, x.scaling, step_->tokens, experts.experts().chosen);
  Run("gather", {BytesOf(x, x_rows) + BytesOf(sorted.values, rows.pairs)}, [&] {
    return kernels::LaunchGatherRows({.in = x,
                                      .tokens = x_rows,
                                      .indices = rows.order,
                                      .rows = rows.pairs,
                                      .out = sorted.values,
                                      .slots = slots,
                                      .count = rows.offsets + rows.groups},
                                     stream_);
  });
  return sorted;
}

void CudaOps::Quantize(const kernels::Activation& x, int rows, int width,
                       const kernels::Activation& out) {
  Run("quantize", {BytesOf(x, rows) + BytesOf(out, rows)}, [&] {
    return kernels::LaunchQuantize(
        {.in = x.data, .in_stride = x.stride, .tokens = rows, .width = width, .out = out}, stream_);
  });
}

void CudaOps::MultiplyGate(const CudaLinear& gate_up, const kernels::Activation& x,
                           const kernels::GroupedRows& rows, GateFunction function,
                           const CudaLinear& down, const kernels::Activation& out) {
  const int tokens = step_->tokens;
  const int chosen = gate_up.experts().chosen;
  CudaInputForm quantized;
  kernels::Activation in = x;
  if (const auto scaling = TileScaling(gate_up, rows.tile_rows); scaling != in.scaling) {
    quantized = TakeForm(gate_up, scaling, tokens);
    Quantize(in, tokens, gate_up.columns, quantized.values);
    in = quantized.values;
  }
  if (!ReadsSorted(gate_up, rows)) {
    MultiplyExperts(gate_up, in, tokens, chosen, rows, function, out);
    return;
  }
  const CudaInputForm sorted = SortByExpert(gate_up, in, chosen, rows);
  MultiplyExperts(gate_up, sorted.values, rows.pairs, 1, rows, function, out,
                  ReadsSorted(down, rows));
}

void CudaOps::CheckMixture(const MixtureWeights& weights, const RouterConfig& spec,
                           GateFunction function) {
  Require(HasGate(function), "feed-forward network", "squared ReLU without a gate", "gated ones");
  Require(function != GateFunction::kGelu, "gate function", "GELU by erf",
          "SiLU, GELU by tanh, a clamped swish");
  Require(spec.experts <= kernels::kMaxExperts, "number of experts", spec.experts, "up to ",
          kernels::kMaxExperts);
  Require(spec.chosen <= kernels::kMaxChosen, "number of experts of a token", spec.chosen, "up to ",
          kernels::kMaxChosen);
  Require(spec.groups <= kernels::kMaxExpertGroups, "number of groups of experts", spec.groups,
          "up to ", kernels::kMaxExpertGroups);
  const int64_t pairs = int64_t{step_->tokens} * spec.chosen;
  Require(pairs <= kernels::kMaxPairs, "number of experts of a step's tokens", pairs, "up to ",
          kernels::kMaxPairs);
  const int hidden = c_.weights->Linear(weights.down).rows;
  Require(hidden % 8 == 0, "hidden size", hidden, "multiples of 8");
}

void CudaOps::DescribeMixture(const CudaLinear& gate_up, const CudaLinear& down) {
  if (!measures_) return;
  const kernels::GroupedWeight& weight = gate_up.experts().weight;
  const int experts = weight.groups;
  mixtures_.push_back({.experts = experts,
                       .expert_bytes = (BytesOf(weight) + BytesOf(down.experts().weight)) / experts,
                       .touched = 0});
}

LinearInput CudaOps::Mixture(const MixtureWeights& weights, const MixtureSpec& spec,
                             const LinearInput& x, const Addend& addend, Residual& residual,
                             std::optional<NormId> norm, Consumers consumers) {
  Require(!addend.norm.has_value(), "norm of what a block adds", "an RMS norm", "none");
  CheckMixture(weights, spec.router, spec.function);
  const CudaLinear& gate_up = c_.weights->Linear(weights.gate_up);
  const CudaLinear& down = c_.weights->Linear(weights.down);
  const int tokens = step_->tokens;
  const int chosen = spec.router.chosen;
  {
    const Routes routes = Route(weights, spec.router, x);
    const int pairs = routes.rows.pairs;
    CudaInputForm gated = TakeForm(down, TileScaling(down, routes.rows.tile_rows), tokens, chosen);
    // Scales that are computed want the whole row first.
    const kernels::Activation& x_rows = FormFor(gate_up, x).values;
    if (kernels::IsKnown(gated.values.scaling)) {
      MultiplyGate(gate_up, x_rows, routes.rows, spec.function, down, gated.values);
    } else {
      const CudaRows plain = TakeRows(sizeof(kernels::Bf16) * down.weight.stride * chosen, tokens);
      const kernels::Activation out = kernels::Bf16Rows(plain.bf16(), down.weight.stride);
      MultiplyGate(gate_up, x_rows, routes.rows, spec.function, down, out);
      Quantize(out, pairs, down.columns, gated.values);
    }
    if (ReadsSorted(down, routes.rows) && !ReadsSorted(gate_up, routes.rows)) {
      gated = SortByExpert(down, gated.values, 1, routes.rows);
    }
    const CudaRows y = TakeRows(sizeof(kernels::Bf16) * down.weight.rows * chosen, tokens);
    const kernels::Activation lowered = kernels::Bf16Rows(y.bf16(), down.weight.rows);
    MultiplyExperts(down, gated.values, pairs, 1, routes.rows, std::nullopt, lowered);
    DescribeMixture(gate_up, down);
    ++mixture_;
    LinearInput between;  // has the shared product's scales
    CudaProduct shared;
    if (weights.shared.has_value()) {
      between = GatedLinear(weights.shared->gate_up, x, spec.function, {weights.shared->down});
      shared = Multiply(c_.weights->Linear(weights.shared->down), between);
    }
    const int router_rows = c_.weights->Linear(weights.router).rows;
    const bool gate = weights.shared.has_value() && weights.shared->gated;
    const ExpertsLinear& experts = gate_up.experts();
    const bool partly = experts.weight.groups < spec.router.experts;  // other ranks have some
    const kernels::CombineArgs combine = {
        .residual = Cast(residual).rows.floats(),
        .y = y.data(),
        .y_type = kernels::Type::kBf16,
        .y_stride = lowered.stride,
        .scores = routes.scores,
        .ids = partly ? routes.ids : nullptr,
        .first_expert = experts.first_expert,
        .experts = experts.weight.groups,
        .shared = shared.values,
        .shared_logits = gate ? routes.logits + spec.router.experts : nullptr,
        .shared_logit_stride = router_rows,
        .factor = addend.factor,
        .tokens = tokens,
        .slots = chosen,
        .width = down.rows};
    if (divided()) return AddMixture(combine, addend, residual, norm, consumers);
    // The norm's kernel combines, too.
    if (norm.has_value()) return AddNorm(*norm, residual, {.mixture = &combine}, consumers);
    Run("combine", {BytesOf(lowered, pairs) + int64_t{8} * tokens * down.rows},
        [&] { return kernels::LaunchCombine(combine, stream_); });
  }
  return Norm(norm, residual, consumers);
}

}  // namespace millrace::cuda
