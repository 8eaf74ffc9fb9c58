#include "executors/cuda/cuda_ops.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "executors/cuda/cuda_buffer.h"
#include "executors/cuda/operand_bytes.h"
#include "kernels/elementwise/embed.h"
#include "kernels/elementwise/gated_activation.h"
#include "kernels/elementwise/gather_rows.h"
#include "kernels/gemm/linear.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/sampling/sample.h"

namespace millrace::cuda {
namespace {

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
