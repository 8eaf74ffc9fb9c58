#include "formats/families/model_tensors.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "base/strings.h"
#include "formats/families/family.h"
#include "formats/tensors/packed_weight.h"

namespace millrace {
namespace {

using Shape = std::vector<int64_t>;

constexpr std::string_view kWeight = ".weight";
// A router adds this to its scores. It is named like a bias, but belongs to no linear.
constexpr std::string_view kRouterCorrection = ".exp_probs_b.bias";

// Returns the shape of the scales beside a linear of this shape.
Shape ScaleShape(const QuantScheme& scheme, const Shape& shape) {
  if (scheme.group == kPerTensor) return {1};
  return {scheme.group.Down(shape[0]), scheme.group.Across(shape[1])};
}

bool IsLinear(TensorRole role) {
  return role == TensorRole::kLinear || role == TensorRole::kExpert;
}

// Checks tensors one after the other; keeps the first error.
class TensorChecker {
 public:
  TensorChecker(const ModelConfig& config, const Family& family, const TensorSource& source)
      : config_(config), family_(family), source_(source) {}

  void Check(const ModelTensor& expected) {
    const auto& [name, shape, role] = expected;
    if (RefusePacked(name, role)) return;
    const bool optional =
        config_.optional_biases && name.ends_with(".bias") && !name.ends_with(kRouterCorrection);
    if (optional && source_.FindTensor(name) == nullptr) return;
    const TensorInfo* tensor = Expect(name);
    if (tensor == nullptr) return;
    if (tensor->shape != shape) {
      return Lies(name,
                  StrCat("shape ", ShapeString(tensor->shape), ", must be ", ShapeString(shape)));
    }
    if (role == TensorRole::kVector && !IsFloat(tensor->type)) {
      return Lies(name, StrCat("type ", Traits(tensor->type).name, ", must be F32, F16 or BF16"));
    }
    if (tensor->type == TensorType::kU8 || tensor->type == TensorType::kI32 ||
        tensor->type == TensorType::kI64) {
      return Lies(name, StrCat("type ", Traits(tensor->type).name,
                               ", which a model's own tensors do not have"));
    }
    if (tensor->type == TensorType::kFp8E4m3) CheckQuantized(name, shape, role);
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
    const auto has_factors = [](const LayerConfig& layer) {
      const auto* const softmax = std::get_if<SoftmaxAttention>(&layer.attention);
      return softmax != nullptr && softmax->rope.has_value() && !softmax->rope->factors.empty();
    };
    if (std::any_of(config_.layers.begin(), config_.layers.end(), has_factors)) {
      for (const char* factors : {kRopeFactors, kShortRopeFactors, kLongRopeFactors}) {
        seen_.insert(source_.FindTensor(factors));
      }
    }
    for (const TensorInfo& tensor : source_.tensors()) {
      // Old files hold what rope_theta says.
      if (seen_.contains(&tensor) || tensor.name.ends_with(".rotary_emb.inv_freq")) continue;
      const auto begins = [&](std::string_view head) { return tensor.name.starts_with(head); };
      if (std::any_of(family_.ignored.begin(), family_.ignored.end(), begins)) continue;
      if (family_.ignores_further_layers && IsOfFurtherLayer(tensor.name)) continue;
      return absl::UnimplementedError(StrCat(source_.base_name(), ": tensor ",
                                             Printable(tensor.name), ": is not one that a ",
                                             config_.architecture, " model is read from"));
    }
    return absl::OkStatus();
  }

 private:
  // Returns whether the name, in either format, begins with a layer's number behind the last.
  bool IsOfFurtherLayer(std::string_view name) const {
    for (const std::string_view head : {"blk.", "model.layers."}) {
      if (!name.starts_with(head)) continue;
      name.remove_prefix(head.size());
      const std::optional<int> layer = ParseNumber<int>(name.substr(0, name.find('.')));
      return layer.has_value() && *layer >= config_.num_layers();
    }
    return false;
  }

  void Lies(const std::string& name, std::string_view what) {
    status_ = absl::InvalidArgumentError(
        StrCat(source_.base_name(), ": tensor ", source_.NameInFile(name), ": ", what));
  }

  // Says of a weight that is there in four bits why it was not presented as one. Returns whether it
  // is.
  bool RefusePacked(const std::string& name, TensorRole role) {
    if (!status_.ok() || !name.ends_with(kWeight) || source_.FindTensor(name) != nullptr) {
      return false;
    }
    const std::string module = name.substr(0, name.size() - kWeight.size());
    for (const char* codes : {".qweight", ".weight_packed"}) {
      if (source_.FindTensor(module + codes) == nullptr) continue;
      const bool known = config_.quantization.has_value() && config_.quantization->packed();
      const bool allowed = IsLinear(role) || role == TensorRole::kRouter;
      Lies(module + codes, StrCat("has packed weights, ",
                                  !known    ? "but the config says nothing of them"
                                  : allowed ? "but not in the config's format"
                                            : "allowed in layers' linears and routers only"));
      return true;
    }
    return false;
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

  void CheckQuantized(const std::string& name, const Shape& shape, TensorRole role) {
    const bool known = config_.quantization.has_value() && !config_.quantization->packed();
    if (!known || !IsLinear(role)) {
      return Lies(name, known ? "type F8_E4M3, allowed in layers' linears only"
                              : "type F8_E4M3, but the config says nothing of it");
    }
    const std::string module = name.substr(0, name.size() - kWeight.size());
    CheckScale(module + ".weight_scale", ScaleShape(*config_.quantization, shape));
    if (config_.quantization->static_activations()) CheckScale(module + ".input_scale", {1});
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
  const Family& family_;
  const TensorSource& source_;
  absl::Status status_;
  absl::flat_hash_set<const TensorInfo*> seen_;
};

class TensorShapes : public TensorSource {
 public:
  TensorShapes(const ModelConfig& config, const Family& family, const StoredTypes& types,
               std::string base_name)
      : base_name_(std::move(base_name)) {
    for (const auto& [name, shape, role] : family.tensors(config)) {
      const bool quantized = config.quantization.has_value() && IsLinear(role);
      const TensorType type =
          role == TensorRole::kExpert ? types.experts.value_or(types.all) : types.all;
      if (quantized && config.quantization->packed()) {
        Add(name, shape, PackedType(*config.quantization, shape[1]));
        continue;
      }
      Add(name, shape, quantized ? config.quantization->type : type);
      if (!quantized) continue;
      const std::string module = name.substr(0, name.size() - kWeight.size());
      Add(module + ".weight_scale", ScaleShape(*config.quantization, shape), TensorType::kF32);
      if (config.quantization->static_activations())
        Add(module + ".input_scale", {1}, TensorType::kF32);
    }
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
  int FileDescriptor(const TensorInfo&) const override { return -1; }
  void DropPages(const TensorInfo&) const override {}
  void DropPages() const override {}

 protected:
  absl::Span<const uint8_t> FileBytes(int) const override { return {}; }

 private:
  void Add(std::string name, const Shape& shape, TensorType type) {
    names_.push_back(std::move(name));
    const int64_t rows =
        std::accumulate(shape.begin(), shape.end() - 1, int64_t{1}, std::multiplies<int64_t>());
    tensors_.push_back({.name = {},
                        .type = type,
                        .shape = shape,
                        .offset = 0,
                        .bytes = rows * RowBytes(type, shape.back())});
  }

  std::string base_name_;
  std::vector<std::string> names_;
  std::vector<TensorInfo> tensors_;
  absl::flat_hash_map<std::string_view, const TensorInfo*, StringHash> index_;
};

}  // namespace

absl::Status ValidateTensors(const ModelConfig& config, const Family& family,
                             const TensorSource& tensors) {
  TensorChecker checker(config, family, tensors);
  for (const ModelTensor& expected : family.tensors(config)) checker.Check(expected);
  for (int layer = 0; layer < config.num_layers(); ++layer) checker.CheckKvScales(layer);
  return checker.Finish();
}

std::unique_ptr<const TensorSource> MakeTensorShapes(const ModelConfig& config,
                                                     const Family& family, const StoredTypes& types,
                                                     std::string base_name) {
  return std::make_unique<TensorShapes>(config, family, types, std::move(base_name));
}

}  // namespace millrace
