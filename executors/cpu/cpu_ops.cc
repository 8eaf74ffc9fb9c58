#include "executors/cpu/cpu_ops.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/fault_points.h"
#include "base/strings.h"
#include "executors/host/host_executor.h"

namespace millrace::cpu {
namespace {

FaultPoint nan_row("cpu.nan_row");          // of a row's logits, one becomes NaN
FaultPoint small_arena("cpu.small_arena");  // a step has half the memory that it takes

// Weight bytes of one chunk: large beside the cost of claiming it, small beside a linear.
constexpr size_t kChunkBytes = 12 << 10;
// The most tokens at a time in a chunk of a gated linear: what their outputs take stays close.
constexpr int kGateTokens = 32;
constexpr int kGateOutputs = kBlock;  // of GateTiles tiles
// Positions whose logits exist at the same time.
constexpr int kLogitRows = 64;

int RoundUp(int64_t value, int to) { return static_cast<int>((value + to - 1) / to * to); }
int Pieces(int64_t whole, int64_t piece) { return static_cast<int>((whole + piece - 1) / piece); }
size_t ScoreStride(int max_length) { return RoundUp(max_length, 64); }

}  // namespace

int CpuOps::GateGroups(const TiledMatrix& matrix, GateFunction function) {
  return Pieces(matrix.tiles, GateTiles(function));
}

CpuOps::CpuOps(const Kernels& kernels, ThreadPool& pool, const CpuWeights& weights,
               const KvArena& kv)
    : kernels_(kernels), pool_(pool), weights_(weights), kv_(kv) {}

CpuOps::CpuOps(const Kernels& kernels, ThreadPool& pool, const CpuWeights& weights,
               const KvArena& kv, OpsMemory memory, int max_length, Collective* collective)
    : kernels_(kernels),
      pool_(pool),
      weights_(weights),
      kv_(kv),
      memory_(std::move(memory)),
      collective_(collective),
      step_memory_{.data = memory_.activations.data()},
      score_stride_(ScoreStride(max_length)) {
  scratch_.reserve(pool.num_threads());
  for (int thread = 0; thread < pool.num_threads(); ++thread) {
    scratch_.emplace_back(score_stride_, kv.largest_head_size());
  }
  SpreadBiases();
}

CpuOps::Scratch::Scratch(size_t score_stride, int head_size)
    : gate(kGateTokens * kGateTiles * kTileRows),
      scores(kMaxQueries * score_stride),
      queries(static_cast<size_t>(kMaxQueries) * head_size),
      heads(static_cast<size_t>(kMaxQueries) * head_size) {}

size_t CpuOps::Scratch::Bytes(size_t score_stride, int head_size, int vocab_size) {
  return sizeof(float) * (kGateTokens * kGateTiles * kTileRows +
                          kMaxQueries * (score_stride + size_t{2} * head_size)) +
         Sampler::kTokenBytes * vocab_size;
}

size_t CpuOps::WorkspaceBytes(const StepLimits& limits, int threads, int head_size) const {
  const size_t stride = ScoreStride(limits.max_model_len);
  size_t of_token = most_chosen_ * (sizeof(RoutedExpert) + 2 * sizeof(int));
  for (const Rotations& rotations : rotations_) {
    of_token += 2 * sizeof(float) * (rotations.spec.dimensions / 2);
  }
  size_t biases = 0;
  for (const PositionBiasTable& table : weights_.position_biases) {
    biases += sizeof(float) * table.heads * (2 * stride + kTileRows);
  }
  const int vocab = limits.embedding_size > 0 ? 0 : limits.vocab_size;
  return LogitBytes(limits.vocab_size) + sizeof(float) * kLogitRows * share_stride_ +
         threads * Scratch::Bytes(stride, head_size, vocab) +
         limits.max_num_batched_tokens * of_token + biases +
         kMaxStateDraftTokens * sizeof(float) * drafted_floats_;
}

size_t CpuOps::LogitBytes(int vocab_size) {
  return sizeof(float) * kLogitRows * RoundUp(vocab_size, kBlock);
}

void CpuOps::BeginStep(const StepInput& input) {
  step_ = static_cast<const CpuStepInput*>(&input);
  step_memory_.rows = static_cast<int>(step_->tokens.size());
  num_mixtures_ = 0;
  num_drafted_layers_ = 0;
  drafted_floats_ = 0;
  step_memory_.exceeded = false;
  if (step_memory_.rows > 0) {
    const size_t capacity = memory_.activations.bytes() / step_memory_.rows;
    step_memory_.arena.SetCapacity(small_arena.Fires() ? token_bytes() / 2 : capacity);
  }
  for (Rotations& rotations : rotations_) rotations.computed = false;
  attention_group_ = 0;
}

std::unique_ptr<CpuLinearInput> CpuOps::TakeInput(Consumers consumers, int64_t width) {
  auto input = std::make_unique<CpuLinearInput>();
  for (const LinearId consumer : consumers) {
    for (const Form form : weights_.Matrix(consumer).inputs) {
      const auto has_form = [form](const CpuActivation& other) { return other.form() == form; };
      if (std::any_of(input->forms.begin(), input->forms.end(), has_form)) continue;
      input->forms.push_back(Take(form, width));
    }
  }
  return input;
}

CpuOps::Inputs CpuOps::FormsFor(LinearId consumer, const LinearInput& x) {
  static const CpuActivation none;
  Inputs inputs(none);
  for (const CpuActivation& input : static_cast<const CpuLinearInput&>(*x).forms) {
    inputs.forms[static_cast<int>(input.form())] = &input;
  }
  for (const Form form : weights_.Matrix(consumer).inputs) {
    if (&inputs[form] != &none) continue;
    Fail(absl::InternalError(
        StrCat("linear ", static_cast<int>(consumer), " reads an input that was not made for it")));
    return Inputs(none);
  }
  return inputs;
}

CpuOps::Inputs CpuOps::InputsFor(LinearId consumer, const LinearInput& x) {
  const TiledMatrix& matrix = weights_.Matrix(consumer);
  Inputs inputs = FormsFor(consumer, x);
  for (size_t i = 0; i < matrix.orders.size(); ++i) {
    inputs.ordered.push_back(Take(Form::kQ8, matrix.columns));
  }
  if (!matrix.orders.empty()) {
    pool_.ParallelFor(inputs[Form::kFloat].rows(),
                      [&](int row, int thread) { OrderRow(matrix, row, thread, inputs); });
  }
  return inputs;
}

void CpuOps::OrderRow(const TiledMatrix& matrix, int row, int thread, const Inputs& x) {
  const float* const from = x[Form::kFloat].Floats(row);
  std::vector<float>& values = scratch_[thread].ordered;
  for (size_t i = 0; i < matrix.orders.size(); ++i) {
    values.assign(RoundUp(matrix.columns, kBlock), 0.0f);
    for (int64_t c = 0; c < matrix.columns; ++c) values[c] = from[matrix.orders[i][c]];
    kernels_.store(values.data(), static_cast<int>(values.size()), Form::kQ8,
                   x.ordered[i].Row(row));
  }
}

void CpuOps::SumRanks(const CpuActivation& x) {
  if (collective_ != nullptr) collective_->AllReduce({x.Floats(0), x.rows() * x.row_floats()});
}

void CpuOps::Lookup(EmbeddingId table, int64_t row, float* out) const {
  const TiledMatrix& matrix = weights_.Matrix(table);
  const Share& rows = weights_.Owned(table);
  if (row >= rows.begin && row < rows.begin + rows.count) {
    UntileRow(matrix, row - rows.begin, out);
  } else {
    std::fill_n(out, matrix.columns, 0.0f);
  }
}

Residual CpuOps::Embed(EmbeddingId table, float factor) {
  const TiledMatrix& matrix = weights_.Matrix(table);
  auto residual = std::make_unique<CpuResidual>(Take(Form::kFloat, matrix.columns));
  const CpuActivation& out = residual->values;
  pool_.ParallelFor(out.rows(), [&](int token, int) {
    float* row = out.Floats(token);
    Lookup(table, step_->tokens[token], row);
    std::fill(row + matrix.columns, row + out.row_floats(), 0.0f);
    if (factor == 1) return;
    for (int64_t i = 0; i < matrix.columns; ++i) row[i] *= factor;
  });
  SumRanks(out);
  return residual;
}

// Where the values end within 16 of the row's end, the row is 0 there, and so is the norm's scale.
void CpuOps::NormRow(NormId id, const float* x, Form form, void* out) const {
  const NormWeight& norm = weights_.Norm(id);
  kernels_.norm(x, norm.scale.data(), norm.size, static_cast<int>(norm.scale.size()), norm.epsilon,
                form, out);
}

void CpuOps::StoreForms(const CpuActivation& floats, int from, const CpuLinearInput& input,
                        int to) const {
  for (const CpuActivation& out : input.forms) {
    kernels_.store(floats.Floats(from), static_cast<int>(floats.row_floats()), out.form(),
                   out.Row(to));
  }
}

LinearInput CpuOps::Norm(std::optional<NormId> norm, const Residual& residual,
                         Consumers consumers) {
  const CpuActivation& in = Values(residual);
  auto input = TakeInput(consumers, in.width());
  pool_.ParallelFor(in.rows(), [&](int token, int) {
    if (!norm.has_value()) return StoreForms(in, token, *input, token);
    for (const CpuActivation& out : input->forms) {
      NormRow(*norm, in.Floats(token), out.form(), out.Row(token));
    }
  });
  return input;
}

int64_t CpuOps::ChunkTiles(const TiledMatrix& matrix) {
  return std::max<int64_t>(1, static_cast<int64_t>(kChunkBytes * matrix.tiles / matrix.bytes));
}

void CpuOps::Gemm(const TiledMatrix& matrix, const Inputs& x, int first_row, int rows, float* out,
                  size_t out_stride, bool add) {
  const int panels = Pieces(rows, kPanelTokens);
  const int64_t tiles = ChunkTiles(matrix);
  const int chunks = Pieces(matrix.tiles, tiles);
  pool_.ParallelFor(panels * chunks, [&](int task, int) {
    const int first = task / chunks * kPanelTokens;
    const int64_t begin = task % chunks * tiles;
    MultiplyTiles(matrix, {begin, std::min(begin + tiles, matrix.tiles)}, x,
                  {first_row + first, first_row + std::min(first + kPanelTokens, rows)},
                  out + first * out_stride, out_stride, add);
  });
}

void CpuOps::MultiplyTiles(const TiledMatrix& matrix, Range tiles, const Inputs& x, Range rows,
                           float* out, size_t out_stride, bool add) {
  GemmTile tile{.weights = nullptr,
                .depth = 0,
                .x = nullptr,
                .x_stride = 0,
                .rows = static_cast<int>(rows.end - rows.begin),
                .out = nullptr,
                .out_stride = out_stride,
                .add = add};
  for (int64_t i = tiles.begin; i < tiles.end; ++i) {
    const CpuActivation& in = x[matrix.Format(i)];
    const TiledMatrix::Place& place = matrix.places[i];
    tile.x = in.Row(static_cast<int>(rows.begin));
    tile.x_stride = in.row_bytes();
    tile.out = out + place.row;
    if (place.rows == kTileRows) {
      matrix.Multiply(i, tile);
    } else {
      matrix.MultiplyPart(i, tile);
    }
  }
}

CpuActivation CpuOps::Product(LinearId weight, const LinearInput& x) {
  const TiledMatrix& matrix = weights_.Matrix(weight);
  const std::vector<float>& bias = weights_.Bias(weight);
  const Inputs in = InputsFor(weight, x);
  const int rows = in[matrix.inputs[0]].rows();
  CpuActivation out = Take(Form::kFloat, matrix.rows);
  if (!bias.empty()) {
    pool_.ParallelFor(out.rows(), [&](int token, int) {
      std::copy(bias.begin(), bias.end(), out.Floats(token));
    });
  }
  Gemm(matrix, in, 0, rows, out.Floats(0), out.row_floats(), !bias.empty());
  return out;
}

Qkv CpuOps::QkvLinear(LinearId weight, const LinearInput& x) {
  return std::make_unique<CpuQkv>(Product(weight, x));
}

void CpuOps::AddToResidual(const Addend& addend, const CpuActivation& y, Residual& residual) {
  const CpuActivation& sum = Values(residual);
  pool_.ParallelFor(sum.rows(), [&](int token, int) {
    float* values = y.Floats(token);
    if (addend.norm.has_value()) NormRow(*addend.norm, values, Form::kFloat, values);
    float* row = sum.Floats(token);
    for (int i = 0; i < sum.width(); ++i) row[i] += addend.factor * values[i];
  });
}

LinearInput CpuOps::RowLinear(LinearId weight, LinearInput x, const Addend& addend,
                              Residual& residual, std::optional<NormId> norm, Consumers consumers) {
  const TiledMatrix& matrix = weights_.Matrix(weight);
  if (!divided() && !addend.norm.has_value() && addend.factor == 1 &&
      weights_.Bias(weight).empty()) {
    const CpuActivation& sum = Values(residual);
    const Inputs in = InputsFor(weight, x);
    const int rows = in[matrix.inputs[0]].rows();
    Gemm(matrix, in, 0, rows, sum.Floats(0), sum.row_floats(), true);
    return Norm(norm, residual, consumers);
  }
  {
    const CpuActivation product = Product(weight, x);
    SumRanks(product);
    AddToResidual(addend, product, residual);
  }
  return Norm(norm, residual, consumers);
}

LinearInput CpuOps::GatedLinear(LinearId weight, const LinearInput& x, GateFunction f,
                                Consumers consumers) {
  const TiledMatrix& matrix = weights_.Matrix(weight);
  const Inputs in = InputsFor(weight, x);
  const int rows = in[matrix.inputs[0]].rows();
  auto input = TakeInput(consumers, weights_.Matrix(consumers.front()).columns);
  const int panels = Pieces(rows, kPanelTokens);
  const int groups = GateGroups(matrix, f);
  pool_.ParallelFor(panels * groups, [&](int task, int thread) {
    const int begin = task / groups * kPanelTokens;
    GateGroup(weight, task % groups, in, {begin, std::min(begin + kPanelTokens, rows)}, f,
              input->forms, thread);
  });
  return input;
}

void CpuOps::GateGroup(LinearId weight, int group, const Inputs& x, Range rows,
                       GateFunction function, absl::Span<const CpuActivation> outs, int thread) {
  const TiledMatrix& matrix = weights_.Matrix(weight);
  const std::vector<float>& bias = weights_.Bias(weight);
  const auto gate = kernels_.gates[static_cast<int>(function)];
  float* const gates = scratch_[thread].gate.data();
  const int tiles = GateTiles(function);
  const int stride = tiles * kTileRows;
  // Pieces are as equal as they can be: a pass over the weights for one row costs that of several.
  int pieces = Pieces(rows.end - rows.begin, kGateTokens);
  for (int first = static_cast<int>(rows.begin), count; pieces > 0; --pieces, first += count) {
    count = Pieces(rows.end - first, pieces);
    GemmTile tile{.weights = nullptr,
                  .depth = 0,
                  .x = nullptr,
                  .x_stride = 0,
                  .rows = count,
                  .out = nullptr,
                  .out_stride = static_cast<size_t>(stride),
                  .add = !bias.empty()};
    const int64_t begin = int64_t{group} * tiles;
    const int64_t end = std::min(begin + tiles, matrix.tiles);
    if (tile.add || end < begin + tiles) std::fill_n(gates, tile.rows * stride, 0.0f);
    for (int i = 0; tile.add && i < tile.rows; ++i) {
      const int64_t last = std::min<int64_t>(end * kTileRows, std::ssize(bias));
      std::copy(bias.begin() + begin * kTileRows, bias.begin() + last, gates + i * stride);
    }
    for (int64_t i = begin; i < end; ++i) {
      const CpuActivation& form = x[matrix.Format(i)];
      tile.x = form.Row(first);
      tile.x_stride = form.row_bytes();
      tile.out = gates + (i - begin) * kTileRows;
      matrix.Multiply(i, tile);
    }
    for (const CpuActivation& out : outs) {
      for (int i = 0; i < tile.rows; ++i) {
        gate(gates + i * stride, out.form(), out.At(first + i, group * kGateOutputs));
      }
    }
  }
}

Logits CpuOps::Head(LinearId weight, const LogitSpec& spec, const LinearInput& x) {
  const std::vector<int>& wanted = step_->wanted;
  const CpuActivation& all = FormFor(weight, x);
  auto logits = std::make_unique<CpuLogits>(
      CpuActivation(step_memory_, all.form(), static_cast<int>(wanted.size()), all.width()), weight,
      spec);
  for (size_t i = 0; i < wanted.size(); ++i) {
    std::copy_n(all.Row(wanted[i]), all.row_bytes(), logits->values.Row(static_cast<int>(i)));
  }
  return logits;
}

void CpuOps::Sample(const Logits& logits) {
  const std::vector<SampleRequest>& samples = step_->samples;
  const CpuActivation& wanted = Values(logits);
  const TiledMatrix& head = weights_.Matrix(logits->head);
  const LogitSpec& spec = logits->spec;
  const Share& rows = weights_.Owned(logits->head);
  const int vocab = static_cast<int>(rows.total);
  const size_t stride = RoundUp(vocab, kBlock);
  const size_t share_stride = RoundUp(head.rows, kBlock);
  if (divided()) share_stride_ = share_stride;
  float* const panel = reinterpret_cast<float*>(memory_.logits.data());
  float* share = panel;
  if (collective_ != nullptr) {
    logit_shares_.resize(kLogitRows * share_stride);
    share = logit_shares_.data();
  }
  if (sampled_.size() < samples.size()) sampled_.resize(samples.size());
  for (int first = 0; first < wanted.rows(); first += kLogitRows) {
    const int count = std::min(kLogitRows, wanted.rows() - first);
    Gemm(head, Inputs(wanted), first, count, share, share_stride, false);
    if (collective_ != nullptr) {
      collective_->GatherRows({first, count, rows}, share, share_stride, panel, stride);
    }
    pool_.ParallelFor(count, [&](int i, int thread) {
      if (!Samples(first + i)) return;
      float* row = panel + i * stride;
      if (spec != LogitSpec{}) {
        kernels_.cap(row, vocab, spec.factor, spec.soft_cap);
      }
      if (nan_row.Fires()) *row = std::numeric_limits<float>::quiet_NaN();
      scratch_[thread].sampler.Sample(*kernels_.sampling, {row, static_cast<size_t>(vocab)},
                                      samples[first + i], &sampled_[first + i]);
    });
  }
}

}  // namespace millrace::cpu
