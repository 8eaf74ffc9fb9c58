// The ops of CudaOps between the qkv linear and the output linear.
#include <algorithm>
#include <utility>

#include "executors/cuda/cuda_buffer.h"
#include "executors/cuda/cuda_ops.h"
#include "executors/cuda/operand_bytes.h"
#include "kernels/attention/paged_attention.h"
#include "kernels/attention/rope_append.h"
#include "kernels/elementwise/quantize.h"
#include "kernels/gemm/linear.h"

namespace millrace::cuda {
namespace {

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

kernels::KvPages CudaOps::Pages(int32_t layer) const {
  const bool fp8 = c_.kv.type == kernels::Type::kFp8;
  return {.data = c_.kv.data + layer * c_.kv.layer_bytes,
          .type = c_.kv.type,
          .block_stride = c_.kv.block_elements,
          .block_size = c_.kv.block_size,
          .kv_heads = c_.kv.kv_heads,
          .head_size = c_.kv.head_size,
          .k_scale = fp8 ? c_.weights->k_scales[layer] : 1.0f,
          .v_scale = fp8 ? c_.weights->v_scales[layer] : 1.0f};
}

void CudaOps::RopeAppend(int32_t layer, const AttentionSpec& spec,
                         const std::optional<HeadNorms>& norms, Activation& qkv,
                         const StepInput& input) {
  Buffer& in = static_cast<Buffer&>(*qkv);
  const CudaNorm* q_norm = norms.has_value() ? &c_.weights->Norm(norms->q) : nullptr;
  const kernels::Rope rope = {
      .rotations = c_.rotations,
      .dimensions = spec.rope.dimensions,
      .interleaved = spec.rope.interleaved,
      .bias = in.bias,
      .q_norm = q_norm != nullptr ? q_norm->weight : nullptr,
      .k_norm = q_norm != nullptr ? c_.weights->Norm(norms->k).weight : nullptr,
      .norm_epsilon = q_norm != nullptr ? q_norm->epsilon : 0};
  if (kernels::AppendsWithAttention(AttentionStepOf(Cast(input), c_, spec))) {
    in.rope = rope;
    return;
  }
  auto q = TakeRows(sizeof(kernels::Bf16) * spec.num_heads * spec.head_size, in.tokens());
  const int64_t head_tokens = int64_t{in.tokens()} * spec.head_size;
  const int64_t kv_bytes = 2 * (2 + c_.kv.element_bytes()) * spec.num_kv_heads * head_tokens;
  Run("rope and append", {4 * spec.num_heads * head_tokens + kv_bytes}, [&] {
    return kernels::LaunchRopeAppend({.qkv = in.product,
                                      .tokens = in.tokens(),
                                      .heads = spec.num_heads,
                                      .positions = c_.buffers->arrays.positions,
                                      .slots = c_.buffers->arrays.slots,
                                      .tables = c_.buffers->tables(),
                                      .rope = rope,
                                      .q = q->bf16(),
                                      .pages = Pages(layer)},
                                     stream_);
  });
  qkv = std::move(q);
}

Activation CudaOps::Attention(int32_t layer, const AttentionSpec& spec, const Activation& qkv,
                              const StepInput& input, LinearId consumer) {
  const CudaStepInput& step = Cast(input);
  const kernels::AttentionStep attention = AttentionStepOf(step, c_, spec);
  if (layer == 0) std::fill(attention_turns_.begin(), attention_turns_.end(), 0);
  const uint32_t turn = ++attention_turns_[PlanOf(c_, spec.window)];
  if (turn == 1) {
    Run("planning attention", {0},
        [&] { return kernels::LaunchPlanAttention(attention, stream_); });
  }
  const Buffer& in = Buffer::Of(qkv);
  const bool appends = in.rope.has_value();
  const int width = spec.num_heads * spec.head_size;
  auto out = TakeInput(consumer, step.tokens);
  // A linear that makes its input leaves more of the memory to attention meanwhile.
  const bool fp8 = out->input.type == kernels::Type::kFp8;
  const bool makes = fp8 && MakesInput(consumer, step.tokens);
  const bool direct = kernels::IsKnown(out->input.scaling) && !makes;
  std::unique_ptr<Buffer> plain;
  if (!direct) plain = TakeRows(sizeof(kernels::Bf16) * width, step.tokens);
  const int64_t kv_width = int64_t{2} * spec.num_kv_heads * spec.head_size;
  const int64_t positions =
      spec.window > 0 ? std::min(step.positions, int64_t{step.rows} * spec.window) : step.positions;
  const int64_t kv_bytes = positions * kv_width * c_.kv.element_bytes();
  const int64_t new_bytes = appends ? 2 * step.tokens * kv_width : 0;  // of the product
  Run("attention", {4 * int64_t{step.tokens} * width + kv_bytes + new_bytes}, [&] {
    return kernels::LaunchPagedAttention(
        {.step = attention,
         .q = appends ? nullptr : in.bf16(),
         .q_stride = appends ? 0 : width,
         .pages = Pages(layer),
         .tables = c_.buffers->tables(),
         .out = direct ? out->input : kernels::Bf16Rows(plain->bf16(), width),
         .scale = spec.scale,
         .soft_cap = 0,
         .scratch = c_.attention_scratch,
         .turn = turn,
         .portable = c_.portable_kernels,
         .qkv = appends ? in.product : kernels::Product{},
         .rope = in.rope.value_or(kernels::Rope{})},
        stream_);
  });
  if (makes) {
    out->row = {.plain = plain->bf16(), .width = width};
    out->row_memory[0] = std::move(plain);
  } else if (!direct) {
    const int64_t bytes = 2 * int64_t{step.tokens} * width + BytesOf(out->input, step.tokens);
    Run("quantize", {bytes}, [&] {
      return kernels::LaunchQuantize({.in = plain->bf16(),
                                      .in_stride = width,
                                      .tokens = step.tokens,
                                      .width = width,
                                      .out = out->input},
                                     stream_);
    });
  }
  return out;
}

}  // namespace millrace::cuda
