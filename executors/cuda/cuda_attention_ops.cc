// The ops of CudaOps between the qkv linear and the output linear.
#include <algorithm>
#include <iterator>
#include <utility>

#include "executors/cuda/cuda_buffer.h"
#include "executors/cuda/cuda_ops.h"
#include "executors/cuda/operand_bytes.h"
#include "kernels/attention/paged_attention.h"
#include "kernels/attention/rope_append.h"
#include "kernels/elementwise/gate_heads.h"
#include "kernels/gemm/linear.h"

namespace millrace::cuda {
namespace {

constexpr int kHeadSizes[] = {64, 96, 128, 256};
constexpr int kMaxGroup = 16;

size_t PlanOf(const CudaOpsContext& context, int32_t window) {
  const auto plan =
      std::find_if(context.attention_plans.begin(), context.attention_plans.end(),
                   [window](const auto& candidate) { return candidate.window == window; });
  return static_cast<size_t>(plan - context.attention_plans.begin());
}

}  // namespace

kernels::AttentionStep AttentionStepOf(const CudaStepInput& step, const CudaOpsContext& context,
                                       const AttentionSpec& spec) {
  const kernels::StepArrays& arrays = context.buffers->arrays;
  return {.rows = step.rows,
          .max_tokens = step.tokens,
          .max_row_tokens = step.max_row_tokens,
          .row_first = arrays.row_first,
          .row_start = arrays.row_start,
          .row_slot = arrays.row_slot,
          .heads = spec.num_heads,
          .kv_heads = spec.num_kv_heads,
          .window = spec.window,
          .plan = context.attention_plans[PlanOf(context, spec.window)].memory};
}

CudaOps::LayerKv CudaOps::KvOf(int32_t layer) const {
  if (measures_) return {};
  const bool fp8 = c_.kv.type == kernels::Type::kFp8;
  return {.pages = {.data = c_.kv.LayerData(layer),
                    .type = c_.kv.type,
                    .block_stride = c_.kv.block_elements,
                    .block_size = c_.kv.block_size,
                    .kv_heads = c_.kv.kv_heads,
                    .head_size = c_.kv.head_size,
                    .k_scale = fp8 ? c_.weights->k_scales[layer] : 1.0f,
                    .v_scale = fp8 ? c_.weights->v_scales[layer] : 1.0f},
          .tables = c_.buffers->tables(c_.kv.state.placements[layer].group)};
}

// Refuses what the kernels of attention do not take.
void CudaOps::CheckAttention(const AttentionSpec& spec) {
  Require(std::find(std::begin(kHeadSizes), std::end(kHeadSizes), spec.head_size) !=
              std::end(kHeadSizes),
          "head size", spec.head_size, "64, 96, 128, 256");
  const int group = spec.num_heads / spec.num_kv_heads;
  Require(group <= kMaxGroup, "number of query heads for each kv head", group, "up to ", kMaxGroup);
  Require(spec.soft_cap == 0, "attention soft cap", spec.soft_cap, "0");
  Require(spec.causal, "attention", "to all of a text", "causal");
  const int rotated = spec.rope.dimensions;
  Require(rotated % 8 == 0 && rotated <= spec.head_size, "number of rotary dimensions", rotated,
          "multiples of 8 up to the head size");
  Require(!measures_ || rotated == 0 || spec.rope == c_.rope, "rotary embedding",
          "another in some layers", "one for all layers that rotate");
}

Query CudaOps::RopeAppend(int32_t layer, const AttentionSpec& spec,
                          const std::optional<HeadNorms>& norms, Qkv qkv) {
  CheckAttention(spec);
  auto& in = static_cast<CudaQkv&>(*qkv);
  auto query = std::make_unique<CudaQuery>();
  const CudaNorm* q_norm = norms.has_value() ? &c_.weights->Norm(norms->q) : nullptr;
  const kernels::Rope rope = {
      .rotations = c_.rotations,
      .dimensions = spec.rope.dimensions,
      .interleaved = spec.rope.interleaved,
      .bias = in.bias,
      .q_norm = q_norm != nullptr ? q_norm->weight : nullptr,
      .k_norm = q_norm != nullptr ? c_.weights->Norm(norms->k).weight : nullptr,
      .norm_epsilon = q_norm != nullptr ? q_norm->epsilon : 0,
      .gates = spec.output_gate};
  query->bias = in.bias;
  // Attention norms each head by itself alone.
  const bool across_heads = norms.has_value() && norms->across_heads;
  Require(!across_heads || !spec.output_gate, "norm of q and k",
          "across heads that have output gates", "over each head");
  if (!across_heads && kernels::AppendsWithAttention(AttentionStepOf(*step_, c_, spec))) {
    query->product = std::move(in.product);
    query->rope = rope;
    return query;
  }
  const int tokens = in.product.rows.tokens();
  query->q = TakeRows(sizeof(kernels::Bf16) * spec.num_heads * spec.head_size, tokens);
  const int64_t head_tokens = int64_t{tokens} * spec.head_size;
  const int64_t kv_bytes = 2 * (2 + c_.kv.element_bytes()) * spec.num_kv_heads * head_tokens;
  const LayerKv kv = KvOf(layer);
  kernels::RopeAppendArgs args{.qkv = in.product.values,
                               .tokens = tokens,
                               .heads = spec.num_heads,
                               .positions = c_.buffers->arrays.positions,
                               .slots = c_.buffers->arrays.slots,
                               .tables = kv.tables,
                               .rope = rope,
                               .q = query->q.bf16(),
                               .pages = kv.pages,
                               .norms_across_heads = across_heads};
  CudaRows squares;
  if (across_heads && divided()) squares = GatherSquares(*norms, args);
  Run("rope and append", {4 * spec.num_heads * head_tokens + kv_bytes},
      [&] { return kernels::LaunchRopeAppend(args, stream_); });
  if (spec.output_gate) query->product = std::move(in.product);
  return query;
}

void CudaOps::GateHeads(const AttentionSpec& spec, const CudaQuery& query, const CudaRows& heads,
                        const kernels::Activation& out) {
  const int width = spec.num_heads * spec.head_size;
  const int tokens = heads.tokens();
  Run("gate", {4 * int64_t{tokens} * width + BytesOf(out, tokens)}, [&] {
    return kernels::LaunchGateHeads({.in = heads.bf16(),
                                     .in_stride = width,
                                     .qkv = query.product.values,
                                     .bias = query.bias,
                                     .tokens = tokens,
                                     .heads = spec.num_heads,
                                     .head_size = spec.head_size,
                                     .out = out},
                                    stream_);
  });
}

LinearInput CudaOps::Attention(int32_t layer, const AttentionSpec& spec, const Query& query,
                               Consumers consumers) {
  const CudaStepInput& step = *step_;
  const kernels::AttentionStep attention = AttentionStepOf(step, c_, spec);
  const uint32_t turn = ++attention_turns_[PlanOf(c_, spec.window)];
  if (turn == 1) {
    Run("planning attention", {0},
        [&] { return kernels::LaunchPlanAttention(attention, stream_); });
  }
  const auto& in = static_cast<const CudaQuery&>(*query);
  const bool appends = in.rope.has_value();
  const int width = spec.num_heads * spec.head_size;
  auto input = TakeInput(consumers, step.tokens);
  CudaInputForm& first = input->forms.front();
  // A linear that makes its input leaves more of the memory to attention meanwhile.
  const bool fp8 = first.values.type == kernels::Type::kFp8;
  const bool makes = fp8 && !spec.output_gate && MakesInput(consumers, step.tokens);
  const bool direct = input->forms.size() == 1 && kernels::IsKnown(first.values.scaling) &&
                      !spec.output_gate && !makes;
  CudaRows plain;
  if (!direct) plain = TakeRows(sizeof(kernels::Bf16) * width, step.tokens);
  const int64_t kv_width = int64_t{2} * spec.num_kv_heads * spec.head_size;
  const int64_t positions =
      spec.window > 0 ? std::min(step.positions, int64_t{step.rows} * spec.window) : step.positions;
  const int64_t kv_bytes = positions * kv_width * c_.kv.element_bytes();
  const int64_t new_bytes = appends ? 2 * step.tokens * kv_width : 0;  // of the product
  const LayerKv kv = KvOf(layer);
  Run("attention", {4 * int64_t{step.tokens} * width + kv_bytes + new_bytes}, [&] {
    return kernels::LaunchPagedAttention(
        {.step = attention,
         .q = appends ? nullptr : in.q.bf16(),
         .q_stride = appends ? 0 : width,
         .pages = kv.pages,
         .tables = kv.tables,
         .out = direct ? first.values : kernels::Bf16Rows(plain.bf16(), width),
         .scale = spec.scale,
         .soft_cap = 0,
         .sinks = spec.sinks.has_value() ? c_.weights->Vector(*spec.sinks) : nullptr,
         .scratch = c_.attention_scratch,
         .launch_number = turn,
         .portable = c_.portable_kernels,
         .qkv = appends ? in.product.values : kernels::Product{},
         .rope = in.rope.value_or(kernels::Rope{})},
        stream_);
  });
  if (direct) return input;
  if (makes) {
    first.row = {.plain = plain.bf16(), .width = width};
    input->plain = std::move(plain);
    return input;
  }
  for (const CudaInputForm& out : input->forms) {
    if (spec.output_gate) {
      GateHeads(spec, in, plain, out.values);
    } else {
      Quantize(kernels::Bf16Rows(plain.bf16(), width), step.tokens, width, out.values);
    }
  }
  return input;
}

}  // namespace millrace::cuda
