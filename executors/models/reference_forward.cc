#include "executors/models/reference_forward.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/strings.h"
#include "executors/executor_driver_test_util.h"
#include "formats/twins/tensor_test_util.h"

namespace millrace {
namespace {

using Row = std::vector<double>;

// [rows, columns], dequantized.
struct Matrix {
  int64_t columns = 0;
  std::vector<double> values;

  Row Times(const Row& x) const {
    Row y(values.size() / columns);
    for (size_t row = 0; row < y.size(); ++row) {
      for (int64_t i = 0; i < columns; ++i) y[row] += values[row * columns + i] * x[i];
    }
    return y;
  }
};

class Reference {
 public:
  explicit Reference(const OpenedModel& model)
      : config_(model.config),
        attention_(config_.layers[0].softmax()),
        rope_(*attention_.rope),
        source_(*model.tensors),
        keys_(config_.layers.size()),
        values_(keys_) {
    for (int i = 0; i < config_.num_layers(); ++i) {
      const std::string block = StrCat("blk.", i, ".");
      Layer& layer = layers_.emplace_back();
      layer.attention_norm = Vector(block + "attn_norm.weight");
      layer.q = Weight(block + "attn_q");
      layer.k = Weight(block + "attn_k");
      layer.v = Weight(block + "attn_v");
      if (attention_.qk_norm == QkNorm::kHead) {
        layer.q_norm = Vector(block + "attn_q_norm.weight");
        layer.k_norm = Vector(block + "attn_k_norm.weight");
      }
      layer.output = Weight(block + "attn_output");
      layer.ffn_norm = Vector(block + "ffn_norm.weight");
      layer.gate = Weight(block + "ffn_gate");
      layer.up = Weight(block + "ffn_up");
      layer.down = Weight(block + "ffn_down");
    }
    embedding_ = Weight("token_embd");
    output_norm_ = Vector("output_norm.weight");
    head_ = config_.tied_embeddings ? embedding_ : Weight("output");
  }

  Row Logits(Token token, int position) {
    const auto begin = embedding_.values.begin() + token * embedding_.columns;
    Row residual(begin, begin + embedding_.columns);
    for (int i = 0; i < config_.num_layers(); ++i) {
      const Layer& layer = layers_[i];
      Add(Attention(i, Norm(residual, layer.attention_norm), position), &residual);
      const Row x = Norm(residual, layer.ffn_norm);
      Row gated = layer.gate.Times(x);
      const Row up = layer.up.Times(x);
      for (size_t j = 0; j < gated.size(); ++j) gated[j] *= up[j] / (1 + std::exp(-gated[j]));
      Add(layer.down.Times(gated), &residual);
    }
    return head_.Times(Norm(residual, output_norm_));
  }

 private:
  struct Layer {
    Row attention_norm, q_norm, k_norm, ffn_norm;
    Matrix q, k, v, output, gate, up, down;
  };

  Row Vector(const std::string& name) const {
    const TensorInfo* tensor = source_.FindTensor(name);
    if (tensor == nullptr) return {};
    const std::vector<float> floats = DecodeTensor(tensor->type, source_.Data(*tensor));
    return Row(floats.begin(), floats.end());
  }

  Matrix Weight(const std::string& module) const {
    const TensorInfo* tensor = source_.FindTensor(module + ".weight");
    const int64_t rows = tensor->shape[0];
    Matrix matrix{.columns = tensor->shape[1], .values = Vector(module + ".weight")};
    if (tensor->type != TensorType::kFp8E4m3) return matrix;
    const Row scales = Vector(module + ".weight_scale");
    const QuantGroup group = config_.quantization->group;
    const int64_t height = group.rows > 0 ? group.rows : rows;
    const int64_t width = group.columns > 0 ? group.columns : matrix.columns;
    const int64_t across = group.Across(matrix.columns);
    for (size_t i = 0; i < matrix.values.size(); ++i) {
      const int64_t row = static_cast<int64_t>(i) / matrix.columns;
      const int64_t column = static_cast<int64_t>(i) % matrix.columns;
      matrix.values[i] *= scales[row / height * across + column / width];
    }
    return matrix;
  }

  static void Add(const Row& x, Row* sum) {
    for (size_t i = 0; i < x.size(); ++i) (*sum)[i] += x[i];
  }

  Row Norm(const Row& x, const Row& scale) const {
    double squares = 0;
    for (const double value : x) squares += value * value;
    const double factor =
        1 / std::sqrt(squares / static_cast<double>(x.size()) + config_.norm_epsilon);
    Row y(x.size());
    for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * factor * scale[i];
    return y;
  }

  // A head of q or k: normed where the model does so, and turned.
  Row Head(const Row& heads, int head, const Row& norm, int position) const {
    const auto begin = heads.begin() + head * attention_.head_size;
    Row x(begin, begin + attention_.head_size);
    if (attention_.qk_norm == QkNorm::kHead) x = Norm(x, norm);
    const int pairs = rope_.dimensions / 2;
    for (int i = 0; i < pairs; ++i) {
      double angle = position * std::pow(rope_.theta, -2.0 * i / rope_.dimensions);
      if (!rope_.factors.empty()) angle /= rope_.factors[i];
      double& a = x[rope_.interleaved ? 2 * i : i];
      double& b = x[rope_.interleaved ? 2 * i + 1 : i + pairs];
      const double turned = a * std::cos(angle) - b * std::sin(angle);
      b = b * std::cos(angle) + a * std::sin(angle);
      a = turned;
    }
    return x;
  }

  Row Attention(int index, const Row& x, int position) {
    const Layer& layer = layers_[index];
    const int size = attention_.head_size;
    const int group = attention_.heads / attention_.kv_heads;
    const Row q = layer.q.Times(x);
    const Row k = layer.k.Times(x);
    std::vector<Row>& keys = keys_[index];  // of positions, all heads'
    Row& turned = keys.emplace_back();
    for (int head = 0; head < attention_.kv_heads; ++head) {
      const Row key = Head(k, head, layer.k_norm, position);
      turned.insert(turned.end(), key.begin(), key.end());
    }
    values_[index].push_back(layer.v.Times(x));
    Row out(q.size());
    for (int head = 0; head < attention_.heads; ++head) {
      const Row query = Head(q, head, layer.q_norm, position);
      const int from = head / group * size;
      Row scores(keys.size());
      for (size_t p = 0; p < keys.size(); ++p) {
        for (int i = 0; i < size; ++i) scores[p] += query[i] * keys[p][from + i];
        scores[p] *= attention_.scale;
      }
      const double most = *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      for (double& score : scores) sum += score = std::exp(score - most);
      for (size_t p = 0; p < keys.size(); ++p) {
        for (int i = 0; i < size; ++i) {
          out[head * size + i] += scores[p] / sum * values_[index][p][from + i];
        }
      }
    }
    return layer.output.Times(out);
  }

  const ModelConfig& config_;
  const SoftmaxAttention& attention_;  // the first layer's, and so every layer's
  const RopeConfig& rope_;
  const TensorSource& source_;
  std::vector<Layer> layers_;
  Matrix embedding_, head_;
  Row output_norm_;
  std::vector<std::vector<Row>> keys_, values_;  // [layers][positions][kv_heads * head_size]
};

}  // namespace

std::vector<double> ReferenceLogprobs(const std::string& path, absl::Span<const Token> tokens) {
  const absl::StatusOr<OpenedModel> model = OpenModel(path);
  CheckOk(model.status());
  Reference reference(*model);
  std::vector<double> logprobs;
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    const Row logits = reference.Logits(tokens[i], static_cast<int>(i));
    const double most = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const double logit : logits) sum += std::exp(logit - most);
    logprobs.push_back(logits[tokens[i + 1]] - most - std::log(sum));
  }
  return logprobs;
}

}  // namespace millrace
