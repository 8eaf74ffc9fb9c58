#include "executors/cuda/cuda_ops.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "base/status.h"
#include "base/strings.h"
#include "executors/cuda/cuda_buffer.h"
#include "executors/cuda/operand_bytes.h"
#include "kernels/elementwise/embed.h"
#include "kernels/elementwise/gated_activation.h"
#include "kernels/elementwise/gather_rows.h"
#include "kernels/elementwise/quantize.h"
#include "kernels/gemm/linear.h"
#include "kernels/moe/route.h"
#include "kernels/norm/add_delta.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/sampling/sample.h"

namespace millrace::cuda {
namespace {

// The largest rows that the kernels of norms and gates take.
constexpr int kMaxHiddenSize = 16384;
constexpr int kMaxFfnSize = 32768;

bool IsWidth(int width, int most) { return width % 8 == 0 && width >= 8 && width <= most; }

// A router's rows are dense, and its input is any other linear's.
int64_t InputStride(const CudaLinear& linear) {
  return RoundUp(linear.columns, kernels::kColumnPadding);
}

// Returns whether `form` is what the linear reads.
bool Fits(const CudaInputForm& form, const CudaLinear& linear) {
  const kernels::Activation& values = form.values;
  return values.scaling == InputScaling(linear) && values.stride == InputStride(linear) &&
         (values.scaling != kernels::Scaling::kTensor || values.scales == linear.input_scale);
}

// Returns whether the linear leaves its gate's values.
bool EndsInGate(const CudaLinear& linear, int tokens, const kernels::Activation& out) {
  return linear.gate == kernels::GateLayout::kInterleaved && kernels::IsKnown(linear.input) &&
         kernels::IsKnown(out.scaling) && 2 * out.stride == linear.rows &&
         kernels::FusesGate(linear.plan(), tokens);
}

}  // namespace

std::vector<int64_t> DecodeBytes(const Model& model, const CudaOpsContext& context, int rows,
                                 int64_t positions, absl::Span<const double> touched) {
  CudaStepInput step;
  step.rows = step.tokens = step.wanted = rows;
  step.positions = positions;
  CudaOps ops(context);
  ops.SetTouched(touched);
  model.Forward(ops, step);
  return ops.TakeBytes();
}

std::vector<MixtureUse> DescribeMixtures(const Model& model, const CudaOpsContext& context) {
  CudaStepInput step;
  step.rows = step.tokens = step.wanted = 1;
  CudaOps ops(context);
  model.Forward(ops, step);
  return ops.TakeMixtures();
}

absl::StatusOr<size_t> ActivationBytes(const Model& model, const CudaOpsContext& context,
                                       const CudaStepInput& step) {
  CudaOps ops(context);
  model.Forward(ops, step);
  MILLRACE_RETURN_IF_ERROR(ops.TakeStatus());
  return ops.activation_bytes();
}

CudaOps::CudaOps(const CudaOpsContext& context, uint8_t* memory, ActivationArena activations,
                 cudaStream_t stream, bool measures)
    : c_(context),
      memory_(memory),
      activations_(std::move(activations)),
      stream_(stream),
      measures_(measures),
      attention_turns_(context.attention_plans.size()) {}

void CudaOps::BeginStep(const StepInput& input) {
  step_ = &Cast(input);
  exceeded_ = false;
  std::fill(attention_turns_.begin(), attention_turns_.end(), 0);
  mixture_ = 0;
}

CudaRows CudaOps::Allocate(size_t bytes, int tokens) {
  const std::optional<size_t> begin = activations_.Take(bytes);
  if (begin.has_value()) return {&activations_, *begin, memory_, tokens};
  exceeded_ = exceeded_ || ok();
  Fail(absl::ResourceExhaustedError(
      StrCat("a step of ", step_->tokens, " tokens takes more memory than was planned")));
  return {nullptr, 0, memory_, tokens};
}

CudaRows CudaOps::TakeRows(size_t row_bytes, int tokens) {
  return Allocate(row_bytes * kernels::LinearCapacity(tokens), tokens);
}

CudaInputForm CudaOps::TakeForm(const CudaLinear& consumer, kernels::Scaling scaling, int tokens,
                                int rows_of_token) {
  const int64_t stride = InputStride(consumer);
  const bool fp8 = scaling != kernels::Scaling::kNone;
  const int64_t rows = kernels::LinearCapacity(tokens) * rows_of_token;
  const int64_t data_bytes = rows * stride * (fp8 ? 1 : 2);  // a multiple of 256
  const int64_t scale_bytes = ScaleCount(scaling, stride, static_cast<int>(rows)) * sizeof(float);
  CudaInputForm form{.rows = Allocate(static_cast<size_t>(data_bytes + scale_bytes), tokens)};
  form.values = {.data = form.rows.data(),
                 .type = fp8 ? kernels::Type::kFp8 : kernels::Type::kBf16,
                 .scaling = scaling,
                 .stride = stride,
                 .scales = scaling == kernels::Scaling::kTensor ? consumer.input_scale
                           : scale_bytes > 0
                               ? reinterpret_cast<float*>(form.rows.data() + data_bytes)
                               : nullptr};
  return form;
}

std::unique_ptr<CudaLinearInput> CudaOps::TakeInput(Consumers consumers, int tokens) {
  auto input = std::make_unique<CudaLinearInput>();
  for (const LinearId consumer : consumers) {
    const CudaLinear& linear = c_.weights->Linear(consumer);
    const auto fits = [&](const CudaInputForm& form) { return Fits(form, linear); };
    if (std::any_of(input->forms.begin(), input->forms.end(), fits)) continue;
    input->forms.push_back(TakeForm(linear, InputScaling(linear), tokens));
  }
  return input;
}

const CudaInputForm& CudaOps::FormFor(const CudaLinear& consumer, const LinearInput& x) {
  static const CudaInputForm none;
  for (const CudaInputForm& form : static_cast<const CudaLinearInput&>(*x).forms) {
    if (Fits(form, consumer)) return form;
  }
  Fail(absl::InternalError("a linear reads an input that was not made for it"));
  return none;
}

// The arguments of a product of x, whose output is to be named.
kernels::LinearArgs CudaOps::ArgsOf(const CudaLinear& linear, const CudaInputForm& x) const {
  const int tokens = x.rows.tokens();
  return {.plan = linear.plan(),
          .weight = linear.weight,
          .input = x.values,
          .tokens = tokens,
          .output = nullptr,
          .output_stride = linear.weight.rows,
          .workspace = c_.linear_workspace,
          .tile_counter = c_.linear_tile_counter,
          .input_row = x.row.has_value() ? &*x.row : nullptr,
          .capacity = kernels::LinearCapacity(tokens)};
}

void CudaOps::Multiply(const kernels::LinearArgs& args, int64_t out_bytes) {
  const int64_t in_bytes = args.input_row == nullptr
                               ? BytesOf(args.input, static_cast<int>(args.tokens))
                               : BytesOf(*args.input_row);
  Run("linear", {BytesOf(args.weight) + in_bytes + out_bytes},
      [&] { return kernels::LaunchLinear(args, stream_); });
}

CudaProduct CudaOps::Multiply(const CudaLinear& linear, const LinearInput& x) {
  const CudaInputForm& in = FormFor(linear, x);
  const int64_t row_bytes = sizeof(kernels::Bf16) * linear.weight.rows;
  CudaProduct out{.rows = TakeRows(row_bytes, in.rows.tokens())};
  if (const FourBitLinear* const four_bit = linear.four_bit()) {
    const kernels::Activation values = kernels::Bf16Rows(out.rows.bf16(), linear.weight.rows);
    if (Expands(*four_bit, in.rows.tokens())) {
      MultiplyExpanded(linear, in, out.rows.bf16());
    } else {
      MultiplyFourBit(*four_bit, in.values, in.rows.tokens(), std::nullopt, values);
    }
    out.values = {out.rows.bf16(), linear.weight.rows, nullptr, nullptr};
    return out;
  }
  kernels::LinearArgs args = ArgsOf(linear, in);
  args.output = out.rows.data();
  Multiply(args, in.rows.tokens() * row_bytes);
  out.values = kernels::LinearProduct(args);
  return out;
}

Residual CudaOps::Embed(EmbeddingId table, float factor) {
  const CudaEmbedding& embedding = c_.weights->Embedding(table);
  const int tokens = step_->tokens;
  auto out = std::make_unique<CudaResidual>();
  out->rows = TakeRows(sizeof(float) * embedding.width, tokens);
  kernels::EmbedArgs args{.ids = c_.buffers->arrays.tokens,
                          .table = embedding.table,
                          .table_stride = embedding.stride,
                          .vocab = embedding.vocab,
                          .tokens = tokens,
                          .width = embedding.width,
                          .residual = out->rows.floats(),
                          .factor = factor};
  if (const NcclPeers* const by = by_nccl()) {
    EmbedByNccl(*by, embedding, args);
    return out;
  }
  if (c_.peers != nullptr) {
    args.part_rows = embedding.rows;
    for (size_t rank = 0; rank < c_.peers->weights.size(); ++rank) {
      args.parts[rank] = c_.peers->weights[rank]->Embedding(table).table;
    }
  }
  Run("embed", {int64_t{tokens} * embedding.width * 6},
      [&] { return kernels::LaunchEmbed(args, stream_); });
  return out;
}

bool CudaOps::MakesInput(Consumers consumers, int tokens) const {
  return consumers.size() == 1 &&
         kernels::FusesPrologue(c_.weights->Linear(consumers.front()).plan(), tokens);
}

bool CudaOps::RouterNorms(Consumers consumers, int tokens) const {
  const CudaLinear& first = c_.weights->Linear(consumers.front());
  const auto takes_bf16 = [this](LinearId consumer) {
    return InputScaling(c_.weights->Linear(consumer)) == kernels::Scaling::kNone;
  };
  return tokens == 1 && !divided() && std::holds_alternative<RouterLinear>(first.runner) &&
         InputStride(first) <= kernels::kMaxRoutedNorm &&
         std::all_of(consumers.begin(), consumers.end(), takes_bf16);
}

void CudaOps::CheckHiddenSize(int size) {
  Require(IsWidth(size, kMaxHiddenSize), "hidden size", size, "multiples of 8 up to ",
          kMaxHiddenSize);
}

void CudaOps::AddDelta(const CudaDelta& added, std::optional<NormId> norm_id, int width,
                       const Residual& residual) {
  CheckHiddenSize(width);
  const CudaRows& sum = Cast(residual).rows;
  const CudaDelta delta = SumRanks(added, sum.tokens(), width);
  const CudaNorm norm = norm_id.has_value() ? c_.weights->Norm(*norm_id) : CudaNorm{};
  Run("addition", {10 * int64_t{sum.tokens()} * width}, [&] {
    return kernels::LaunchAddDelta({.residual = sum.floats(),
                                    .delta = delta.product,
                                    .bias = delta.bias,
                                    .weight = norm.weight,
                                    .epsilon = norm.epsilon,
                                    .factor = delta.factor,
                                    .tokens = sum.tokens(),
                                    .width = width},
                                   stream_);
  });
}

LinearInput CudaOps::AddNorm(NormId norm_id, const Residual& residual, const CudaDelta& delta,
                             Consumers consumers) {
  const CudaRows& sum = Cast(residual).rows;
  auto input = TakeInput(consumers, sum.tokens());
  const CudaNorm& norm = c_.weights->Norm(norm_id);
  CheckHiddenSize(norm.size);
  const int64_t elements = int64_t{sum.tokens()} * norm.size;
  const bool reduces = ReducesInNorm(delta, sum.tokens(), norm.size);
  CudaDelta added = reduces ? delta : SumRanks(delta, sum.tokens(), norm.size);
  for (const CudaInputForm& out : input->forms) {
    const int64_t element_bytes = added.product.data != nullptr ? 10
                                  : added.mixture != nullptr    ? 8
                                                             : 4;  // with what is added and stored
    const int64_t bytes =
        element_bytes * elements + 4 * norm.size + BytesOf(out.values, sum.tokens());
    const kernels::RmsNormArgs args = {.residual = sum.floats(),
                                       .delta = added.product,
                                       .weight = norm.weight,
                                       .epsilon = norm.epsilon,
                                       .tokens = sum.tokens(),
                                       .width = norm.size,
                                       .out = out.values,
                                       .delta_factor = added.factor,
                                       .delta_bias = added.bias,
                                       .mixture = added.mixture};
    if (added.sum != nullptr) {
      RunTogether("all-reduce and norm", {bytes}, [&] { return LaunchReduceNorm(args); });
    } else {
      Run("norm", {bytes}, [&] { return kernels::LaunchRmsNorm(args, stream_); });
    }
    added = {};  // by the first form's kernel
  }
  return input;
}

LinearInput CudaOps::Norm(std::optional<NormId> norm, const Residual& residual,
                          Consumers consumers) {
  if (norm.has_value()) return AddNorm(*norm, residual, {}, consumers);
  const CudaRows& rows = Cast(residual).rows;
  const int width = c_.weights->Linear(consumers.front()).columns;
  CheckHiddenSize(width);
  auto input = TakeInput(consumers, rows.tokens());
  for (const CudaInputForm& out : input->forms) {
    const int64_t bytes = 4 * int64_t{rows.tokens()} * width + BytesOf(out.values, rows.tokens());
    Run("quantize", {bytes}, [&] {
      return kernels::LaunchQuantize({.in = rows.floats(),
                                      .in_stride = width,
                                      .tokens = rows.tokens(),
                                      .width = width,
                                      .out = out.values,
                                      .in_type = kernels::Type::kF32},
                                     stream_);
    });
  }
  return input;
}

Qkv CudaOps::QkvLinear(LinearId weight, const LinearInput& x) {
  const CudaLinear& linear = c_.weights->Linear(weight);
  auto out = std::make_unique<CudaQkv>();
  out->product = Multiply(linear, x);
  out->bias = linear.bias;
  return out;
}

LinearInput CudaOps::RowLinear(LinearId weight, LinearInput x, const Addend& addend,
                               Residual& residual, std::optional<NormId> norm_id,
                               Consumers consumers) {
  const CudaLinear& linear = c_.weights->Linear(weight);
  CudaProduct product = Multiply(linear, x);
  const CudaDelta delta = {.product = product.values,
                           .bias = linear.bias,
                           .factor = addend.factor,
                           .sum = divided() ? product.rows.bf16() : nullptr};
  if (addend.norm.has_value() || !norm_id.has_value()) {
    AddDelta(delta, addend.norm, linear.rows, residual);
    return Norm(norm_id, residual, consumers);
  }
  const int tokens = product.rows.tokens();
  if (RouterNorms(consumers, tokens)) {
    const CudaNorm& norm = c_.weights->Norm(*norm_id);
    auto input = TakeInput(consumers, tokens);
    input->norm = {.residual = Cast(residual).rows.floats(),
                   .delta = product.values,
                   .weight = norm.weight,
                   .epsilon = norm.epsilon,
                   .tokens = tokens,
                   .width = norm.size,
                   .out = input->forms.front().values,
                   .delta_factor = delta.factor,
                   .delta_bias = delta.bias};
    input->product = std::move(product);
    input->scales = std::move(x);
    return input;
  }
  // A fused prologue knows neither factor nor bias, nor other ranks.
  if (divided() || delta.factor != 1 || delta.bias != nullptr || !MakesInput(consumers, tokens)) {
    return AddNorm(*norm_id, residual, delta, consumers);
  }
  const CudaNorm& norm = c_.weights->Norm(*norm_id);
  auto sum = std::make_unique<CudaResidual>();
  sum->rows = TakeRows(sizeof(float) * norm.size, tokens);
  auto input = TakeInput(consumers, tokens);
  input->forms.front().row = {.norm = norm.weight,
                              .epsilon = norm.epsilon,
                              .residual = Cast(residual).rows.floats(),
                              .delta = product.values,
                              .new_residual = sum->rows.floats(),
                              .width = norm.size};
  input->product = std::move(product);
  input->scales = std::move(x);
  input->residual = std::exchange(residual, std::move(sum));
  return input;
}

LinearInput CudaOps::GatedLinear(LinearId weight, const LinearInput& x, GateFunction f,
                                 Consumers consumers) {
  const CudaLinear& linear = c_.weights->Linear(weight);
  Require(HasGate(f), "feed-forward network", "squared ReLU without a gate", "gated ones");
  Require(f == GateFunction::kSilu, "gate function",
          f == GateFunction::kClampedSwish ? "a clamped swish" : "GELU", "SiLU");
  Require(IsWidth(linear.rows / 2, kMaxFfnSize), "feed-forward size", linear.rows / 2,
          "multiples of 8 up to ", kMaxFfnSize);
  const CudaInputForm& in = FormFor(linear, x);
  const int tokens = in.rows.tokens();
  auto input = TakeInput(consumers, tokens);
  const kernels::Activation& first = input->forms.front().values;
  const FourBitLinear* const four_bit = linear.four_bit();
  if (four_bit != nullptr && !Expands(*four_bit, tokens) &&
      linear.gate == kernels::GateLayout::kInterleaved && input->forms.size() == 1 &&
      kernels::IsKnown(first.scaling)) {
    MultiplyFourBit(*four_bit, in.values, tokens, f, first);
    return input;
  }
  if (input->forms.size() == 1 && EndsInGate(linear, tokens, first)) {
    kernels::LinearArgs args = ArgsOf(linear, in);
    args.gated = first;
    Multiply(args, BytesOf(first, tokens));
    return input;
  }
  const CudaProduct gate_up = Multiply(linear, x);
  for (const CudaInputForm& out : input->forms) {
    Run("gated activation", {2 * int64_t{tokens} * linear.rows + BytesOf(out.values, tokens)}, [&] {
      return kernels::LaunchGatedActivation({.gate_up = gate_up.values,
                                             .tokens = tokens,
                                             .size = linear.rows / 2,
                                             .out = out.values,
                                             .portable = c_.portable_kernels,
                                             .layout = linear.gate},
                                            stream_);
    });
  }
  return input;
}

Logits CudaOps::Head(LinearId weight, const LogitSpec& spec, const LinearInput& x) {
  Require(c_.vocab_size <= kernels::kMaxSampledVocab, "vocabulary size", c_.vocab_size, "up to ",
          kernels::kMaxSampledVocab);
  const CudaLinear& head = c_.weights->Linear(weight);
  const CudaInputForm& all = FormFor(head, x);
  auto logits = std::make_unique<CudaLogits>(weight, spec);
  for (int first = 0; first < step_->wanted; first += c_.buffers->max_logit_rows) {
    const int rows = std::min(c_.buffers->max_logit_rows, step_->wanted - first);
    CudaInputForm piece = TakeForm(head, InputScaling(head), rows);
    Run("gather", {2 * BytesOf(piece.values, rows)}, [&] {
      return kernels::LaunchGatherRows({.in = all.values,
                                        .tokens = step_->tokens,
                                        .indices = c_.buffers->arrays.wanted_token + first,
                                        .rows = rows,
                                        .out = piece.values},
                                       stream_);
    });
    logits->pieces.push_back(std::move(piece));
  }
  return logits;
}

void CudaOps::Sample(const Logits& logits) {
  const CudaLinear& head = c_.weights->Linear(logits->head);
  const StepBuffers& buffers = *c_.buffers;
  int first = 0;
  for (const CudaInputForm& piece : static_cast<const CudaLogits&>(*logits).pieces) {
    const int rows = piece.rows.tokens();
    kernels::LinearArgs args = ArgsOf(head, piece);
    args.output = divided() ? buffers.logit_share : buffers.logits;
    args.output_stride = divided() ? head.weight.rows : buffers.logits_stride;
    args.capacity = std::min<int64_t>(args.capacity, buffers.max_logit_rows);
    Multiply(args, sizeof(float) * rows * head.weight.rows);
    const RowShare share = DealLogits(head, rows);
    const int begin = first + share.first;
    // The first of its kernels reads the logits, and writes them where a factor or a cap changes
    // them; the second reads what the first one says.
    const int64_t logit_bytes = logits->spec == LogitSpec{} ? 4 : 8;
    Run("sample", {logit_bytes * share.count * c_.vocab_size, 0}, [&] {
      return kernels::LaunchSample({.logits = buffers.logits,
                                    .logits_stride = buffers.logits_stride,
                                    .vocab_size = c_.vocab_size,
                                    .max_rows = share.count,
                                    .num_rows = buffers.counts + share.count,
                                    .rows = buffers.arrays.samples + begin,
                                    .slots = buffers.arrays.sampling,
                                    .biases = buffers.arrays.biases,
                                    .biases_stride = buffers.arrays.biases_stride,
                                    .history = buffers.arrays.history,
                                    .history_stride = buffers.arrays.history_stride,
                                    .adjusted = buffers.adjusted,
                                    .workspace = buffers.sample_workspace,
                                    .last_tokens = buffers.last_tokens,
                                    .results = buffers.results + begin,
                                    .tops = buffers.tops + begin * kernels::kMaxSampledTop,
                                    .logit_factor = logits->spec.factor,
                                    .logit_soft_cap = logits->spec.soft_cap,
                                    .masks = buffers.masks,
                                    .masks_stride = buffers.mask_words,
                                    .mask_arrival = {.wanted = buffers.arrays.masks_wanted,
                                                     .ready = buffers.masks_ready,
                                                     .rows = buffers.mask_rows,
                                                     .timeout_ns = buffers.mask_timeout_ns}},
                                   stream_);
    });
    ShareSamples(first, rows, share);
    first += rows;
  }
}

}  // namespace millrace::cuda
