#include "executors/cuda/cuda_ops.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "executors/cuda/operand_bytes.h"
#include "kernels/attention/rope_append.h"
#include "kernels/elementwise/embed.h"
#include "kernels/elementwise/gated_activation.h"
#include "kernels/elementwise/gather_rows.h"
#include "kernels/elementwise/quantize.h"
#include "kernels/gemm/linear.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/sampling/sample.h"

namespace millrace::cuda {

// What an op leaves: the residual (float32), a linear's input, its product, or q. Which of them is
// known to the ops that pass it on.
class CudaOps::Buffer : public ActivationBuffer {
 public:
  Buffer(ActivationArena& arena, size_t bytes, int tokens)
      : arena_(arena), data_(arena.Take(std::max<size_t>(bytes, 1))), tokens_(tokens) {}
  ~Buffer() override { arena_.Return(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  static const Buffer& Of(const Activation& activation) {
    return static_cast<const Buffer&>(*activation);
  }

  uint8_t* data() const { return data_; }
  int tokens() const { return tokens_; }
  float* residual() const { return reinterpret_cast<float*>(data_); }
  kernels::Bf16* bf16() const { return reinterpret_cast<kernels::Bf16*>(data_); }

  kernels::Activation input{};  // of a linear
  kernels::Product product{};
  int width = 0;                      // of a residual
  const float* bias = nullptr;        // of a product: to be added
  std::optional<kernels::Rope> rope;  // of a product that attention turns and appends itself

  std::vector<std::unique_ptr<Buffer>> pieces;  // of what the head runs on, one run each

  // Of a linear that makes its input: of what, and whose memory that is.
  std::optional<kernels::InputRow> row;
  std::unique_ptr<ActivationBuffer> row_memory[3];

 private:
  ActivationArena& arena_;
  uint8_t* data_;
  int tokens_;
};

namespace {

size_t PlanOf(const CudaOpsContext& context, int32_t window) {
  const auto plan =
      std::find_if(context.attention_plans.begin(), context.attention_plans.end(),
                   [window](const auto& candidate) { return candidate.window == window; });
  return static_cast<size_t>(plan - context.attention_plans.begin());
}

// Whether the linear leaves its gate's values.
bool EndsInGate(const CudaLinear& linear, int tokens, const kernels::Activation& out) {
  return linear.gate == kernels::GateLayout::kInterleaved && kernels::IsKnown(linear.input) &&
         kernels::IsKnown(out.scaling) && 2 * out.stride == linear.rows &&
         kernels::TakesGate(linear.plan, tokens);
}

// What `read` finds when nothing was launched, only measured.
template <typename Read>
auto Measure(const Model& model, const CudaOpsContext& context, const CudaStepInput& step,
             const Read& read) {
  ActivationArena endless(nullptr, std::numeric_limits<size_t>::max() / 2);
  CudaOps ops(context, endless, nullptr, /*measures=*/true);
  model.Forward(ops, step);
  return read(ops, endless);
}

}  // namespace

std::vector<int64_t> DecodeBytes(const Model& model, const CudaOpsContext& context, int rows,
                                 int64_t positions) {
  CudaStepInput step;
  step.rows = step.tokens = step.wanted = rows;
  step.positions = positions;
  return Measure(model, context, step,
                 [](CudaOps& ops, const ActivationArena&) { return ops.TakeBytes(); });
}

size_t ActivationBytes(const Model& model, const CudaOpsContext& context,
                       const CudaStepInput& step) {
  return Measure(model, context, step,
                 [](const CudaOps&, const ActivationArena& arena) { return arena.peak(); });
}

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

template <typename Launch>
void CudaOps::Run(std::string_view op, std::initializer_list<int64_t> bytes, const Launch& launch) {
  if (measures_) {
    bytes_.insert(bytes_.end(), bytes);
  } else if (status_.ok()) {
    status_ = ToStatus(launch(), op);
  }
}

std::unique_ptr<CudaOps::Buffer> CudaOps::TakeRows(size_t row_bytes, int tokens) {
  return std::make_unique<Buffer>(activations_, row_bytes * kernels::LinearRoom(tokens), tokens);
}

std::unique_ptr<CudaOps::Buffer> CudaOps::TakeInput(LinearId consumer, int tokens) {
  const CudaLinear& linear = c_.weights->Linear(consumer);
  const int64_t stride = linear.weight.stride;
  const bool fp8 = linear.weight.type == kernels::Type::kFp8;
  const int64_t rows = kernels::LinearRoom(tokens);
  const int64_t data_bytes = rows * stride * (fp8 ? 1 : 2);  // a multiple of 256
  const int64_t scale_bytes =
      ScaleCount(linear.input, stride, static_cast<int>(rows)) * sizeof(float);
  auto buffer = std::make_unique<Buffer>(activations_, data_bytes + scale_bytes, tokens);
  buffer->input = {.data = buffer->data(),
                   .type = linear.weight.type,
                   .scaling = linear.input,
                   .stride = stride,
                   .scales = linear.input == kernels::Scaling::kTensor ? linear.input_scale
                             : scale_bytes > 0
                                 ? reinterpret_cast<float*>(buffer->data() + data_bytes)
                                 : nullptr};
  return buffer;
}

// A product of x, whose output is to be named.
kernels::LinearArgs CudaOps::ArgsOf(const CudaLinear& linear, const Buffer& x) const {
  return {.plan = linear.plan,
          .weight = linear.weight,
          .input = x.input,
          .tokens = x.tokens(),
          .output = nullptr,
          .output_stride = linear.weight.rows,
          .workspace = c_.linear_workspace,
          .ticket = c_.linear_ticket,
          .input_row = x.row.has_value() ? &*x.row : nullptr,
          .room = kernels::LinearRoom(x.tokens())};
}

void CudaOps::Multiply(const kernels::LinearArgs& args, int64_t out_bytes) {
  const int64_t in_bytes = args.input_row == nullptr
                               ? BytesOf(args.input, static_cast<int>(args.tokens))
                               : BytesOf(*args.input_row);
  Run("linear", {BytesOf(args.weight) + in_bytes + out_bytes},
      [&] { return kernels::LaunchLinear(args, stream_); });
}

std::unique_ptr<CudaOps::Buffer> CudaOps::Multiply(const CudaLinear& linear, const Buffer& x) {
  const int64_t row_bytes = sizeof(kernels::Bf16) * linear.weight.rows;
  auto out = TakeRows(row_bytes, x.tokens());
  kernels::LinearArgs args = ArgsOf(linear, x);
  args.output = out->data();
  Multiply(args, x.tokens() * row_bytes);
  out->product = kernels::LinearProduct(args);
  return out;
}

Activation CudaOps::Embed(EmbeddingId table, float, const StepInput& input) {
  const CudaStepInput& step = Cast(input);
  const CudaEmbedding& embedding = c_.weights->Embedding(table);
  auto out = TakeRows(sizeof(float) * embedding.width, step.tokens);
  out->width = embedding.width;
  Run("embed", {int64_t{step.tokens} * embedding.width * 6}, [&] {
    return kernels::LaunchEmbed({.ids = c_.buffers->arrays.tokens,
                                 .table = embedding.table,
                                 .table_stride = embedding.stride,
                                 .vocab = embedding.vocab,
                                 .tokens = step.tokens,
                                 .width = embedding.width,
                                 .residual = out->residual()},
                                stream_);
  });
  return out;
}

bool CudaOps::MakesInput(LinearId consumer, int tokens) const {
  return kernels::MakesInput(c_.weights->Linear(consumer).plan, tokens);
}

std::unique_ptr<CudaOps::Buffer> CudaOps::AddNorm(const CudaNorm& norm, const Buffer& residual,
                                                  const kernels::Product& delta,
                                                  LinearId consumer) {
  auto out = TakeInput(consumer, residual.tokens());
  const int64_t element_bytes = delta.data != nullptr ? 10 : 4;  // with what is added and stored
  const int64_t elements = int64_t{residual.tokens()} * norm.size;
  Run("norm", {element_bytes * elements + 4 * norm.size + BytesOf(out->input, out->tokens())}, [&] {
    return kernels::LaunchRmsNorm({.residual = residual.residual(),
                                   .delta = delta,
                                   .weight = norm.weight,
                                   .epsilon = norm.epsilon,
                                   .tokens = residual.tokens(),
                                   .width = norm.size,
                                   .out = out->input},
                                  stream_);
  });
  return out;
}

Activation CudaOps::Norm(std::optional<NormId> norm, const Activation& residual,
                         LinearId consumer) {
  return AddNorm(c_.weights->Norm(*norm), Buffer::Of(residual), {}, consumer);
}

Activation CudaOps::Linear(LinearId weight, const Activation& x) {
  const CudaLinear& linear = c_.weights->Linear(weight);
  auto out = Multiply(linear, Buffer::Of(x));
  out->bias = linear.bias;
  return out;
}

Activation CudaOps::RowLinear(LinearId weight, Activation x, const Addend&, Activation& residual,
                              std::optional<NormId> norm_id, LinearId consumer) {
  auto delta = Multiply(c_.weights->Linear(weight), Buffer::Of(x));
  const CudaNorm& norm = c_.weights->Norm(*norm_id);
  const int tokens = delta->tokens();
  if (!MakesInput(consumer, tokens)) {
    return AddNorm(norm, Buffer::Of(residual), delta->product, consumer);
  }
  auto sum = TakeRows(sizeof(float) * norm.size, tokens);
  auto out = TakeInput(consumer, tokens);
  out->row = {.norm = norm.weight,
              .epsilon = norm.epsilon,
              .residual = Buffer::Of(residual).residual(),
              .delta = delta->product,
              .new_residual = sum->residual(),
              .width = norm.size};
  sum->width = norm.size;
  out->row_memory[0] = std::move(delta);
  out->row_memory[1] = std::move(x);  // has the scale of delta
  out->row_memory[2] = std::exchange(residual, std::move(sum));
  return out;
}

Activation CudaOps::GatedLinear(LinearId weight, const Activation& x, GateFunction,
                                LinearId consumer) {
  const CudaLinear& linear = c_.weights->Linear(weight);
  const Buffer& in = Buffer::Of(x);
  auto out = TakeInput(consumer, in.tokens());
  if (EndsInGate(linear, in.tokens(), out->input)) {
    kernels::LinearArgs args = ArgsOf(linear, in);
    args.gated = out->input;
    Multiply(args, BytesOf(out->input, in.tokens()));
    return out;
  }
  const auto gate_up = Multiply(linear, in);
  const int64_t bytes = 2 * int64_t{gate_up->tokens()} * linear.rows;
  Run("gated activation", {bytes + BytesOf(out->input, out->tokens())}, [&] {
    return kernels::LaunchGatedActivation({.gate_up = gate_up->product,
                                           .tokens = gate_up->tokens(),
                                           .size = linear.rows / 2,
                                           .out = out->input,
                                           .portable = c_.portable_kernels,
                                           .layout = linear.gate},
                                          stream_);
  });
  return out;
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

Activation CudaOps::Head(LinearId weight, const LogitSpec&, const Activation& x,
                         const StepInput& input) {
  const CudaStepInput& step = Cast(input);
  head_ = weight;
  auto wanted = std::make_unique<Buffer>(activations_, 0, step.wanted);
  for (int first = 0; first < step.wanted; first += c_.buffers->max_logit_rows) {
    const int rows = std::min(c_.buffers->max_logit_rows, step.wanted - first);
    auto piece = TakeInput(weight, rows);
    Run("gather", {2 * BytesOf(piece->input, rows)}, [&] {
      return kernels::LaunchGatherRows({.in = Buffer::Of(x).input,
                                        .tokens = step.tokens,
                                        .indices = c_.buffers->arrays.wanted_token + first,
                                        .rows = rows,
                                        .out = piece->input},
                                       stream_);
    });
    wanted->pieces.push_back(std::move(piece));
  }
  return wanted;
}

void CudaOps::Sample(const Activation& logits, const StepInput&) {
  const CudaLinear& head = c_.weights->Linear(head_);
  const StepBuffers& buffers = *c_.buffers;
  int first = 0;
  for (const auto& piece : Buffer::Of(logits).pieces) {
    const int rows = piece->tokens();
    kernels::LinearArgs args = ArgsOf(head, *piece);
    args.output = buffers.logits;
    args.output_stride = buffers.logits_stride;
    args.room = std::min<int64_t>(args.room, buffers.max_logit_rows);
    Multiply(args, sizeof(float) * rows * head.weight.rows);
    // The second of its kernels reads what the first one says.
    Run("sample", {4 * int64_t{rows} * c_.vocab_size, 0}, [&] {
      return kernels::LaunchSample({.logits = buffers.logits,
                                    .logits_stride = buffers.logits_stride,
                                    .vocab_size = c_.vocab_size,
                                    .max_rows = rows,
                                    .num_rows = buffers.counts + rows,
                                    .rows = buffers.arrays.samples + first,
                                    .slots = buffers.arrays.sampling,
                                    .biases = buffers.arrays.biases,
                                    .biases_stride = buffers.arrays.biases_stride,
                                    .history = buffers.arrays.history,
                                    .history_stride = buffers.arrays.history_stride,
                                    .adjusted = buffers.adjusted,
                                    .workspace = buffers.sample_workspace,
                                    .last_tokens = buffers.last_tokens,
                                    .results = buffers.results + first,
                                    .tops = buffers.tops + first * kernels::kMaxSampledTop},
                                   stream_);
    });
    first += rows;
  }
}

}  // namespace millrace::cuda
