// The ops of encoders, and those that make embeddings.
#include <algorithm>
#include <cmath>
#include <utility>

#include "executors/cpu/cpu_ops.h"

namespace millrace::cpu {
namespace {

// Sums of `value(i)` over [0, size) in 16 lanes, which are then added: one order at any width of
// the machine's registers.
template <typename Value>  // float(int i)
float Sum(int size, const Value& value) {
  constexpr int kLanes = 16;
  float lanes[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += value(i + lane);
  }
  for (int lane = 0; i + lane < size; ++lane) lanes[lane] += value(i + lane);
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

// Works in place; what fills the row up to its end becomes 0.
void LayerNormRow(const NormWeight& norm, const CpuActivation& x, int token) {
  float* row = x.Floats(token);
  const int size = norm.size;
  const float mean = Sum(size, [&](int i) { return row[i]; }) / static_cast<float>(size);
  const float variance = Sum(size, [&](int i) { return (row[i] - mean) * (row[i] - mean); }) /
                         static_cast<float>(size);
  const float factor = 1 / std::sqrt(variance + norm.epsilon);
  for (int i = 0; i < size; ++i) row[i] = (row[i] - mean) * factor * norm.scale[i] + norm.bias[i];
  std::fill(row + size, row + x.row_floats(), 0.0f);
}

// Works in place. erf is that of Abramowitz and Stegun, "Handbook of Mathematical
// Functions", 7.1.26, whose error is at most 1.5e-7: with z = |x| / sqrt(2) and t = 1 / (1 + p z),
// erf(z) = 1 - (a1 t + a2 t^2 + ... + a5 t^5) exp(-z^2).
void Gelu(const Kernels& kernels, float* x, int size) {
  constexpr int kPiece = 256;
  constexpr float kP = 0.3275911f;
  constexpr float kA[] = {0.254829592f, -0.284496736f, 1.421413741f, -1.453152027f, 1.061405429f};
  float exponentials[kPiece];
  for (int begin = 0; begin < size; begin += kPiece) {
    float* piece = x + begin;
    const int count = std::min(kPiece, size - begin);
    for (int i = 0; i < count; ++i) exponentials[i] = piece[i] * piece[i];
    kernels.sampling->exp_sum(exponentials, count, 0, -0.5f, exponentials);
    for (int i = 0; i < count; ++i) {
      const float t = 1 / (1 + kP * std::abs(piece[i]) * static_cast<float>(M_SQRT1_2));
      const float tail =
          t * (kA[0] + t * (kA[1] + t * (kA[2] + t * (kA[3] + t * kA[4])))) * exponentials[i];
      // 1 + erf(z) for x >= 0, and 1 - erf(z) below.
      piece[i] *= 0.5f * (piece[i] >= 0 ? 2 - tail : tail);
    }
  }
}

float Apply(HeadFunction function, float x) {
  switch (function) {
    case HeadFunction::kTanh:
      return std::tanh(x);
    case HeadFunction::kRelu:
      return x > 0 || std::isnan(x) ? x : 0;
    case HeadFunction::kGelu:
      return x / 2 * (1 + std::erf(x * static_cast<float>(M_SQRT1_2)));
    case HeadFunction::kSilu:
      return x / (1 + std::exp(-x));
    case HeadFunction::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case HeadFunction::kIdentity:
      break;
  }
  return x;
}

// Divides by the Euclidean length; as PyTorch's normalize() it keeps clear of a division by 0.
void Normalize(float* values, int size) {
  const float length = std::sqrt(Sum(size, [&](int i) { return values[i] * values[i]; }));
  for (int i = 0; i < size; ++i) values[i] /= std::max(length, 1e-12f);
}

}  // namespace

Residual CpuOps::EmbedAll(const EmbeddingTables& tables, NormId norm) {
  const int width = static_cast<int>(weights_.Matrix(tables.tokens).columns);
  const int num_types = tables.types.has_value() ? std::min(tables.num_types, 2) : 0;
  std::vector<float> types(size_t{2} * width);
  for (int type = 0; type < num_types && step_memory_.rows > 0; ++type) {
    Lookup(*tables.types, type, types.data() + static_cast<size_t>(type) * width);
  }
  auto hidden = std::make_unique<CpuResidual>(Take(Form::kFloat, width));
  const CpuActivation& out = hidden->values;
  pool_.ParallelFor(out.rows(), [&](int token, int thread) {
    std::vector<float>& position = scratch_[thread].embedding;
    position.assign(width, 0.0f);
    float* row = out.Floats(token);
    Lookup(tables.tokens, step_->tokens[token], row);
    if (tables.positions.has_value()) {
      Lookup(*tables.positions, step_->positions[token] + tables.first_position, position.data());
    }
    const int32_t type_id = step_->types[token] < num_types ? step_->types[token] : 0;
    const float* const type = types.data() + static_cast<size_t>(type_id) * width;
    for (int i = 0; i < width; ++i) row[i] += position[i] + type[i];
  });
  SumRanks(out);
  pool_.ParallelFor(out.rows(),
                    [&](int token, int) { LayerNormRow(weights_.Norm(norm), out, token); });
  return hidden;
}

LinearInput CpuOps::NormInput(std::optional<NormId> norm, const Residual& hidden,
                              Consumers consumers) {
  const CpuActivation& states = Values(hidden);
  if (!norm.has_value()) return Norm(std::nullopt, hidden, consumers);
  auto input = TakeInput(consumers, int64_t{states.width()});
  const CpuActivation normed = Take(Form::kFloat, states.width());
  pool_.ParallelFor(states.rows(), [&](int token, int) {
    std::copy_n(states.Floats(token), states.row_floats(), normed.Floats(token));
    LayerNormRow(weights_.Norm(*norm), normed, token);
    StoreForms(normed, token, *input, token);
  });
  return input;
}

void CpuOps::NormAll(NormId norm, Residual& hidden) {
  const CpuActivation& states = Values(hidden);
  pool_.ParallelFor(states.rows(),
                    [&](int token, int) { LayerNormRow(weights_.Norm(norm), states, token); });
}

void CpuOps::AddLinear(LinearId weight, const LinearInput& x, std::optional<NormId> norm,
                       Residual& hidden) {
  const CpuActivation& sum = Values(hidden);
  const auto norm_row = [&](int token) {
    if (norm.has_value()) LayerNormRow(weights_.Norm(*norm), sum, token);
  };
  if (divided()) {
    const CpuActivation product = Product(weight, x);
    SumRanks(product);
    pool_.ParallelFor(sum.rows(), [&](int token, int) {
      const float* y = product.Floats(token);
      float* row = sum.Floats(token);
      for (int i = 0; i < sum.width(); ++i) row[i] += y[i];
      norm_row(token);
    });
    return;
  }
  const TiledMatrix& matrix = weights_.Matrix(weight);
  const std::vector<float>& bias = weights_.Bias(weight);
  const Inputs in = InputsFor(weight, x);
  Gemm(matrix, in, 0, in[matrix.inputs[0]].rows(), sum.Floats(0), sum.row_floats(), true);
  pool_.ParallelFor(sum.rows(), [&](int token, int) {
    float* row = sum.Floats(token);
    for (size_t i = 0; i < bias.size(); ++i) row[i] += bias[i];
    norm_row(token);
  });
}

LinearInput CpuOps::GeluLinear(LinearId weight, const LinearInput& x, Consumers consumers) {
  CpuActivation y = Product(weight, x);
  const bool floats = std::all_of(consumers.begin(), consumers.end(), [&](LinearId consumer) {
    const std::vector<Form>& inputs = weights_.Matrix(consumer).inputs;
    return inputs.size() == 1 && inputs[0] == Form::kFloat;
  });
  auto input =
      floats ? std::make_unique<CpuLinearInput>() : TakeInput(consumers, int64_t{y.width()});
  pool_.ParallelFor(y.rows(), [&](int token, int) {
    float* row = y.Floats(token);
    Gelu(kernels_, row, y.width());
    std::fill(row + y.width(), row + y.row_floats(), 0.0f);
    StoreForms(y, token, *input, token);
  });
  if (floats) input->forms.push_back(std::move(y));
  return input;
}

void CpuOps::PoolRow(const CpuActivation& states, const CpuStepInput::Row& row, Pooling pooling,
                     float* out) const {
  const int width = states.width();
  std::copy_n(states.Floats(row.first_token), width, out);
  if (pooling != Pooling::kMean) return;
  for (int token = 1; token < row.num_tokens; ++token) {
    const float* state = states.Floats(row.first_token + token);
    for (int i = 0; i < width; ++i) out[i] += state[i];
  }
  for (int i = 0; i < width; ++i) out[i] /= static_cast<float>(row.num_tokens);
}

void CpuOps::Pool(const Residual& hidden, Pooling pooling, bool normalize) {
  const CpuActivation& states = Values(hidden);
  const int width = states.width();
  embeddings_.resize(step_->rows.size() * width);
  pool_.ParallelFor(NumRows(), [&](int index, int) {
    float* embedding = embeddings_.data() + static_cast<size_t>(index) * width;
    PoolRow(states, step_->rows[index], pooling, embedding);
    if (normalize) Normalize(embedding, width);
  });
}

void CpuOps::PoolNormed(NormId norm, const Residual& residual, Pooling pooling, bool normalize) {
  const CpuActivation& states = Values(residual);
  const int width = states.width();
  embeddings_.assign(step_->rows.size() * width, 0);
  pool_.ParallelFor(NumRows(), [&](int index, int thread) {
    const CpuStepInput::Row& row = step_->rows[index];
    float* embedding = embeddings_.data() + static_cast<size_t>(index) * width;
    std::vector<float>& normed = scratch_[thread].embedding;
    normed.resize(states.row_floats());
    const int first = pooling == Pooling::kMean ? 0 : row.num_tokens - 1;
    for (int token = first; token < row.num_tokens; ++token) {
      NormRow(norm, states.Floats(row.first_token + token), Form::kFloat, normed.data());
      for (int i = 0; i < width; ++i) embedding[i] += normed[i];
    }
    if (pooling == Pooling::kMean) {
      for (int i = 0; i < width; ++i) embedding[i] /= static_cast<float>(row.num_tokens);
    }
    if (normalize) Normalize(embedding, width);
  });
}

LinearInput CpuOps::PoolRows(const Residual& hidden, Pooling pooling, Consumers consumers) {
  const CpuActivation& states = Values(hidden);
  auto input = TakeInput(consumers, int64_t{states.width()});
  const CpuActivation pooled = Take(Form::kFloat, states.width());
  pool_.ParallelFor(NumRows(), [&](int index, int) {
    float* const row = pooled.Floats(index);
    PoolRow(states, step_->rows[index], pooling, row);
    std::fill(row + pooled.width(), row + pooled.row_floats(), 0.0f);
    StoreForms(pooled, index, *input, index);
  });
  return input;
}

CpuActivation CpuOps::RowsProduct(const HeadLayer& layer, const LinearInput& x) {
  const TiledMatrix& matrix = weights_.Matrix(layer.linear);
  const std::vector<float>& bias = weights_.Bias(layer.linear);
  const Inputs in = InputsFor(layer.linear, x);
  CpuActivation out = Take(Form::kFloat, matrix.rows);
  Gemm(matrix, in, 0, NumRows(), out.Floats(0), out.row_floats(), false);
  pool_.ParallelFor(NumRows(), [&](int index, int) {
    float* const row = out.Floats(index);
    for (int i = 0; i < out.width(); ++i) {
      row[i] = Apply(layer.function, bias.empty() ? row[i] : row[i] + bias[i]);
    }
    std::fill(row + out.width(), row + out.row_floats(), 0.0f);
    if (layer.norm.has_value()) LayerNormRow(weights_.Norm(*layer.norm), out, index);
  });
  return out;
}

LinearInput CpuOps::RowsLinear(const HeadLayer& layer, const LinearInput& x, Consumers consumers) {
  const CpuActivation y = RowsProduct(layer, x);
  auto input = TakeInput(consumers, int64_t{y.width()});
  pool_.ParallelFor(NumRows(), [&](int index, int) { StoreForms(y, index, *input, index); });
  return input;
}

void CpuOps::Output(const HeadLayer& layer, const LinearInput& x, bool normalize) {
  const CpuActivation y = RowsProduct(layer, x);
  const auto width = static_cast<size_t>(y.width());
  embeddings_.resize(step_->rows.size() * width);
  for (int index = 0; index < NumRows(); ++index) {
    float* const row = embeddings_.data() + index * width;
    std::copy_n(y.Floats(index), width, row);
    if (normalize) Normalize(row, y.width());
  }
}

}  // namespace millrace::cpu
