#include "formats/model_tensors.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "base/strings.h"

namespace millrace {
namespace {

using Shape = std::vector<int64_t>;

enum class Role {
  kTable,   // the embedding and the head
  kLinear,  // of a layer
  kVector,  // of a norm, or a bias
};

constexpr std::string_view kWeight = ".weight";

// Of heads that embeddings have no use for.
constexpr std::string_view kOtherHeads[] = {"pooler.", "bert.pooler.", "cls."};

template <typename Visit>  // void(const std::string& name, const Shape& shape, Role role)
void ForEachEncoderTensor(const ModelConfig& config, const Visit& visit) {
  const int64_t hidden = config.hidden_size;
  const int64_t ffn = config.ffn_size;
  const auto linear = [&](const std::string& name, int64_t out, int64_t in) {
    visit(name + ".weight", {out, in}, Role::kLinear);
    visit(name + ".bias", {out}, Role::kVector);
  };
  const auto norm = [&](const std::string& name) {
    visit(name + ".weight", {hidden}, Role::kVector);
    visit(name + ".bias", {hidden}, Role::kVector);
  };
  visit("token_embd.weight", {config.vocab_size, hidden}, Role::kTable);
  visit("position_embd.weight", {config.encoder->positions, hidden}, Role::kTable);
  visit("token_types.weight", {config.encoder->token_types, hidden}, Role::kTable);
  norm("token_embd_norm");
  for (int layer = 0; layer < config.layers; ++layer) {
    const std::string block = StrCat("blk.", layer, ".");
    for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output"}) {
      linear(block + name, hidden, hidden);
    }
    norm(block + "attn_output_norm");
    linear(block + "ffn_up", ffn, hidden);
    linear(block + "ffn_down", hidden, ffn);
    norm(block + "layer_output_norm");
  }
}

template <typename Visit>  // void(const std::string& name, const Shape& shape, Role role)
void ForEachTensor(const ModelConfig& config, const Visit& visit) {
  if (config.encoder.has_value()) return ForEachEncoderTensor(config, visit);
  const int64_t hidden = config.hidden_size;
  const int64_t ffn = config.ffn_size;
  const int64_t head = config.head_size;
  const int64_t q = config.heads * head;
  const int64_t kv = config.kv_heads * head;
  visit("token_embd.weight", {config.vocab_size, hidden}, Role::kTable);
  for (int layer = 0; layer < config.layers; ++layer) {
    const std::string block = StrCat("blk.", layer, ".");
    if (config.pre_norms) visit(block + "attn_norm.weight", {hidden}, Role::kVector);
    if (config.fused_qkv) {
      visit(block + "attn_qkv.weight", {q + 2 * kv, hidden}, Role::kLinear);
    } else {
      visit(block + "attn_q.weight", {q, hidden}, Role::kLinear);
      visit(block + "attn_k.weight", {kv, hidden}, Role::kLinear);
      visit(block + "attn_v.weight", {kv, hidden}, Role::kLinear);
    }
    if (config.qkv_bias) {
      visit(block + "attn_q.bias", {q}, Role::kVector);
      visit(block + "attn_k.bias", {kv}, Role::kVector);
      visit(block + "attn_v.bias", {kv}, Role::kVector);
    }
    if (config.qk_norm != QkNorm::kNone) {
      const bool whole = config.qk_norm == QkNorm::kWhole;
      visit(block + "attn_q_norm.weight", {whole ? q : head}, Role::kVector);
      visit(block + "attn_k_norm.weight", {whole ? kv : head}, Role::kVector);
    }
    visit(block + "attn_output.weight", {hidden, q}, Role::kLinear);
    if (config.post_norms) visit(block + "post_attention_norm.weight", {hidden}, Role::kVector);
    if (config.pre_norms) visit(block + "ffn_norm.weight", {hidden}, Role::kVector);
    if (!config.fused_gate_up) visit(block + "ffn_gate.weight", {ffn, hidden}, Role::kLinear);
    visit(block + "ffn_up.weight", {config.fused_gate_up ? 2 * ffn : ffn, hidden}, Role::kLinear);
    visit(block + "ffn_down.weight", {hidden, ffn}, Role::kLinear);
    if (config.post_norms) visit(block + "post_ffw_norm.weight", {hidden}, Role::kVector);
  }
  visit("output_norm.weight", {hidden}, Role::kVector);
  if (!config.tied_embeddings) visit("output.weight", {config.vocab_size, hidden}, Role::kTable);
}

// Of the scales beside a linear of this shape.
Shape ScaleShape(const Fp8Scheme& scheme, const Shape& shape) {
  const auto blocks = [](int64_t size) { return (size + kFp8Block - 1) / kFp8Block; };
  switch (scheme.weights) {
    case Fp8Scheme::Weights::kTensor:
      return {1};
    case Fp8Scheme::Weights::kChannel:
      return {shape[0], 1};
    case Fp8Scheme::Weights::kBlock:
      return {blocks(shape[0]), blocks(shape[1])};
  }
  return {};
}

bool IsFloat(TensorType type) {
  return type == TensorType::kF32 || type == TensorType::kF16 || type == TensorType::kBf16;
}

// Checks tensors one after the other; keeps the first error.
class TensorChecker {
 public:
  TensorChecker(const ModelConfig& config, const TensorSource& source)
      : config_(config), source_(source) {}

  void Check(const std::string& name, const Shape& shape, Role role) {
    const TensorInfo* tensor = Expect(name);
    if (tensor == nullptr) return;
    if (tensor->shape != shape) {
      return Lies(name,
                  StrCat("shape ", ShapeString(tensor->shape), ", must be ", ShapeString(shape)));
    }
    if (role == Role::kVector && !IsFloat(tensor->type)) {
      return Lies(name, StrCat("type ", Traits(tensor->type).name, ", must be F32, F16 or BF16"));
    }
    if (tensor->type == TensorType::kFp8E4m3) CheckFp8(name, shape, role);
  }

  // Scales of a layer's FP8 keys and values, where the files have them.
  void CheckKvScales(int layer) {
    for (const char* scale : {"k_scale", "v_scale"}) {
      const std::string name = StrCat("blk.", layer, ".attn.", scale);
      if (source_.FindTensor(name) != nullptr) CheckScale(name, {1});
    }
  }

  // A tensor that nothing reads (a bias, a second norm) would change the maths if it were read.
  absl::Status Finish() {
    if (!status_.ok()) return status_;
    // The head of a tied model is the embedding, also where a file holds it twice; rope factors are
    // part of the config.
    if (config_.tied_embeddings) seen_.insert(source_.FindTensor("output.weight"));
    if (!config_.rope.factors.empty()) {
      for (const char* factors : {kRopeFactors, kShortRopeFactors, kLongRopeFactors}) {
        seen_.insert(source_.FindTensor(factors));
      }
    }
    for (const TensorInfo& tensor : source_.tensors()) {
      // Old files hold what rope_theta says.
      if (seen_.contains(&tensor) || tensor.name.ends_with(".rotary_emb.inv_freq")) continue;
      const auto begins = [&](std::string_view head) { return tensor.name.starts_with(head); };
      if (config_.encoder.has_value() &&
          std::any_of(std::begin(kOtherHeads), std::end(kOtherHeads), begins)) {
        continue;
      }
      return absl::UnimplementedError(StrCat(source_.base_name(), ": tensor ",
                                             Printable(tensor.name), ": is not one that a ",
                                             config_.architecture, " model is read from"));
    }
    return absl::OkStatus();
  }

 private:
  void Lies(const std::string& name, std::string_view what) {
    status_ = absl::InvalidArgumentError(
        StrCat(source_.base_name(), ": tensor ", source_.NameInFile(name), ": ", what));
  }

  // The tensor, or nullptr after an error, of which the first is kept.
  const TensorInfo* Expect(const std::string& name) {
    if (!status_.ok()) return nullptr;
    const TensorInfo* tensor = source_.FindTensor(name);
    if (tensor == nullptr) {
      Lies(name, "is missing");
    } else {
      seen_.insert(tensor);
    }
    return tensor;
  }

  void CheckFp8(const std::string& name, const Shape& shape, Role role) {
    if (!config_.fp8.has_value() || role != Role::kLinear) {
      return Lies(name, config_.fp8.has_value()
                            ? "type F8_E4M3, allowed in layers' linears only"
                            : "type F8_E4M3, but the config says nothing of it");
    }
    const std::string module = name.substr(0, name.size() - kWeight.size());
    CheckScale(module + ".weight_scale", ScaleShape(*config_.fp8, shape));
    if (config_.fp8->static_activations) CheckScale(module + ".input_scale", {1});
  }

  // As many numbers as `shape` has, in it or, where it is one column or one number, without its
  // last dimensions of 1.
  void CheckScale(const std::string& name, Shape shape) {
    const TensorInfo* tensor = Expect(name);
    if (tensor == nullptr) return;
    Shape found = tensor->shape;
    for (Shape* trimmed : {&found, &shape}) {
      while (!trimmed->empty() && trimmed->back() == 1) trimmed->pop_back();
    }
    if (found != shape || !IsFloat(tensor->type)) {
      Lies(name, StrCat("is ", Traits(tensor->type).name, " ", ShapeString(tensor->shape),
                        ", must be F32, F16 or BF16 ", ShapeString(shape)));
    }
  }

  const ModelConfig& config_;
  const TensorSource& source_;
  absl::Status status_;
  absl::flat_hash_set<const TensorInfo*> seen_;
};

class TensorShapes : public TensorSource {
 public:
  TensorShapes(const ModelConfig& config, TensorType type, std::string base_name)
      : base_name_(std::move(base_name)) {
    ForEachTensor(config, [&](const std::string& name, const Shape& shape, Role role) {
      const bool fp8 = config.fp8.has_value() && role == Role::kLinear;
      Add(name, shape, fp8 ? TensorType::kFp8E4m3 : type);
      if (!fp8) return;
      const std::string module = name.substr(0, name.size() - kWeight.size());
      Add(module + ".weight_scale", ScaleShape(*config.fp8, shape), TensorType::kF32);
      if (config.fp8->static_activations) Add(module + ".input_scale", {1}, TensorType::kF32);
    });
    // Nothing moves any more: names may be pointed into.
    for (size_t i = 0; i < tensors_.size(); ++i) {
      tensors_[i].name = names_[i];
      index_.emplace(names_[i], &tensors_[i]);
    }
  }

  const std::string& base_name() const override { return base_name_; }
  absl::Span<const TensorInfo> tensors() const override { return tensors_; }
  const TensorInfo* FindTensor(std::string_view name) const override {
    const auto it = index_.find(name);
    return it == index_.end() ? nullptr : it->second;
  }
  bool has_data() const override { return false; }
  absl::Span<const uint8_t> Data(const TensorInfo&) const override { return {}; }
  int FileDescriptor(const TensorInfo&) const override { return -1; }
  void DropPages(const TensorInfo&) const override {}
  void DropPages() const override {}

 private:
  void Add(std::string name, const Shape& shape, TensorType type) {
    names_.push_back(std::move(name));
    const int64_t elements =
        std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<int64_t>());
    tensors_.push_back({.name = {},
                        .type = type,
                        .shape = shape,
                        .offset = 0,
                        .bytes = static_cast<uint64_t>(elements) * Traits(type).block_bytes});
  }

  std::string base_name_;
  std::vector<std::string> names_;
  std::vector<TensorInfo> tensors_;
  absl::flat_hash_map<std::string_view, const TensorInfo*, StringHash> index_;
};

}  // namespace

absl::Status ValidateTensors(const ModelConfig& config, const TensorSource& tensors) {
  TensorChecker checker(config, tensors);
  ForEachTensor(config, [&](const std::string& name, const Shape& shape, Role role) {
    checker.Check(name, shape, role);
  });
  for (int layer = 0; layer < config.layers; ++layer) checker.CheckKvScales(layer);
  return checker.Finish();
}

std::unique_ptr<const TensorSource> MakeTensorShapes(const ModelConfig& config, TensorType type,
                                                     std::string base_name) {
  return std::make_unique<TensorShapes>(config, type, std::move(base_name));
}

}  // namespace millrace
