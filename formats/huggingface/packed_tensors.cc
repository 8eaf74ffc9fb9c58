#include "formats/huggingface/packed_tensors.h"

#include <algorithm>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "base/status.h"
#include "base/strings.h"
#include "formats/tensors/float16.h"
#include "formats/tensors/packed_reader.h"
#include "formats/tensors/packed_weight.h"
#include "formats/tensors/tensor_list.h"

namespace millrace {
namespace {

using Shape = std::vector<int64_t>;

constexpr std::string_view kWeight = ".weight";
constexpr int kWordCodes = 8;
constexpr int kExpanded = -1;  // as TensorInfo::file, of tensors that lie in none

// How a packing's tensors are called.
struct PartNames {
  std::string_view codes, scales, zeros, groups;
};
PartNames NamesOf(Packing packing) {
  if (packing == Packing::kPackQuantized) {
    return {".weight_packed", ".weight_scale", ".weight_zero_point", ".weight_g_idx"};
  }
  return {".qweight", ".scales", ".qzeros", ".g_idx"};
}

std::string ModuleOf(const std::string& weight) { return weight.substr(0, weight.rfind('.')); }

int64_t CeilDiv(int64_t value, int64_t by) { return (value + by - 1) / by; }

// Finds and checks the tensors of one weight after the other; keeps the first error.
class PartFinder {
 public:
  PartFinder(const QuantScheme& scheme, const TensorSource& source)
      : scheme_(scheme), source_(source), names_(NamesOf(scheme.packing)) {}

  bool Has(const std::string& module) const {
    return source_.FindTensor(StrCat(module, names_.codes)) != nullptr;
  }

  absl::StatusOr<PackedWeight> Read(const std::string& module, const Shape& shape) {
    PackedWeight weight{.scheme = scheme_, .rows = shape[0], .columns = shape[1]};
    weight.group = scheme_.group.columns > 0 ? scheme_.group.columns : weight.columns;
    const std::string codes = StrCat(module, names_.codes);
    if (weight.columns % weight.group != 0) {
      return Wrong(codes, StrCat("has ", weight.columns, " inputs, must be a multiple of the ",
                                 "groups' size, ", weight.group));
    }
    const bool by_rows = scheme_.packing == Packing::kPackQuantized;
    const int64_t divided = scheme_.packing == Packing::kGptq ? weight.columns : weight.rows;
    if (!by_rows && (divided % kWordCodes != 0 || weight.rows % kWordCodes != 0)) {
      return Wrong(codes, StrCat("holds a weight ", ShapeString(shape),
                                 ", must be of multiples of ", kWordCodes));
    }
    MILLRACE_ASSIGN_OR_RETURN(weight.codes, Find(codes, CodesShape(weight), {TensorType::kI32}));
    const int64_t groups = weight.num_groups();
    MILLRACE_ASSIGN_OR_RETURN(
        weight.scales, Find(StrCat(module, names_.scales),
                            by_rows ? Shape{weight.rows, groups} : Shape{groups, weight.rows},
                            {TensorType::kF16, TensorType::kBf16, TensorType::kF32}));
    if (!by_rows || !scheme_.symmetric) {
      const int64_t words = CeilDiv(weight.rows, kWordCodes);
      MILLRACE_ASSIGN_OR_RETURN(
          weight.zeros,
          Find(StrCat(module, names_.zeros), by_rows ? Shape{words, groups} : Shape{groups, words},
               {TensorType::kI32}));
    }
    MILLRACE_RETURN_IF_ERROR(FindGroups(module, &weight));
    if (by_rows) {
      MILLRACE_RETURN_IF_ERROR(
          Find(module + ".weight_shape", {2}, {TensorType::kI32, TensorType::kI64}).status());
    }
    return weight;
  }

  // The tensors that stand beside a weight and are part of it; nullptr for those that are absent.
  std::vector<const TensorInfo*> PartsOf(const std::string& module) const {
    std::vector<const TensorInfo*> parts;
    for (const std::string_view name : {names_.codes, names_.scales, names_.zeros, names_.groups,
                                        std::string_view(".weight_shape")}) {
      parts.push_back(source_.FindTensor(StrCat(module, name)));
    }
    return parts;
  }

 private:
  absl::Status Wrong(const std::string& name, std::string_view what) const {
    return absl::InvalidArgumentError(
        StrCat(source_.base_name(), ": tensor ", source_.NameInFile(name), ": ", what));
  }

  Shape CodesShape(const PackedWeight& weight) const {
    switch (scheme_.packing) {
      case Packing::kGptq:
        return {weight.columns / kWordCodes, weight.rows};
      case Packing::kAwq:
        return {weight.columns, weight.rows / kWordCodes};
      default:
        return {weight.rows, CeilDiv(weight.columns, kWordCodes)};
    }
  }

  absl::StatusOr<const TensorInfo*> Find(const std::string& name, const Shape& shape,
                                         std::vector<TensorType> types) const {
    const TensorInfo* const tensor = source_.FindTensor(name);
    if (tensor == nullptr) return Wrong(name, "is missing");
    if (tensor->shape == shape &&
        std::find(types.begin(), types.end(), tensor->type) != types.end())
      return tensor;
    std::vector<std::string> allowed;
    for (const TensorType type : types) allowed.emplace_back(Traits(type).name);
    return Wrong(name, StrCat("is ", Traits(tensor->type).name, " ", ShapeString(tensor->shape),
                              ", must be ", JoinList(allowed), " ", ShapeString(shape)));
  }

  // A tensor of groups that nobody asked for is read all the same: AutoGPTQ always writes it.
  absl::Status FindGroups(const std::string& module, PackedWeight* weight) const {
    const std::string name = StrCat(module, names_.groups);
    const bool may_be = scheme_.packing != Packing::kAwq;
    const bool must_be = scheme_.reordered && weight->num_groups() > 1;
    if (!may_be || (!must_be && source_.FindTensor(name) == nullptr)) return absl::OkStatus();
    MILLRACE_ASSIGN_OR_RETURN(weight->groups, Find(name, {weight->columns}, {TensorType::kI32}));
    return absl::OkStatus();
  }

  const QuantScheme& scheme_;
  const TensorSource& source_;
  const PartNames names_;
};

class PackedSource : public TensorSource {
 public:
  explicit PackedSource(std::unique_ptr<const TensorSource> stored) : stored_(std::move(stored)) {}

  absl::Status Build(const ModelConfig& config, const Family& family) {
    PartFinder reader(*config.quantization, *stored_);
    absl::flat_hash_set<const TensorInfo*> hidden = {nullptr};
    absl::flat_hash_set<std::string> vectors;
    const std::vector<ModelTensor> expected = family.tensors(config);
    for (const ModelTensor& tensor : expected) vectors.insert(tensor.name);
    for (const ModelTensor& tensor : expected) {
      const bool router = tensor.role == TensorRole::kRouter;
      const bool linear = tensor.role == TensorRole::kLinear || tensor.role == TensorRole::kExpert;
      if ((!router && !linear) || !tensor.name.ends_with(kWeight)) continue;
      std::string module = ModuleOf(tensor.name);
      Shape shape = tensor.shape;
      const std::string both = SharedGateUpName(tensor.name);
      if (!reader.Has(module) && !both.empty()) {  // a shared expert's gate and up may be one
        module = ModuleOf(both);
        shape[0] *= 2;
      }
      if (stored_->FindTensor(tensor.name) != nullptr || !reader.Has(module)) continue;
      MILLRACE_ASSIGN_OR_RETURN(PackedWeight weight, reader.Read(module, shape));
      weight.rows = tensor.shape[0];
      if (tensor.name.find("_up_") != std::string::npos) weight.first_row = shape[0] - weight.rows;
      MILLRACE_RETURN_IF_ERROR(Present(tensor.name, weight, router));
      for (const TensorInfo* part : reader.PartsOf(module)) hidden.insert(part);
      if (!vectors.contains(module + ".bias") && IsZero(module + ".bias")) {
        hidden.insert(stored_->FindTensor(module + ".bias"));
      }
    }
    for (const TensorInfo& tensor : stored_->tensors()) {
      if (!hidden.contains(&tensor)) tensors_.push_back(tensor);
    }
    // Nothing moves any more: the maps may point into it.
    for (size_t i = 0; i < weights_.size(); ++i) weight_of_[&tensors_[i]] = &weights_[i];
    size_t next = weights_.size();
    for (const TensorInfo& tensor : stored_->tensors()) {
      if (!hidden.contains(&tensor)) kept_[&tensor] = &tensors_[next++];
    }
    return absl::OkStatus();
  }

  const std::string& base_name() const override { return stored_->base_name(); }
  absl::Span<const TensorInfo> tensors() const override { return tensors_; }
  const TensorInfo* FindTensor(std::string_view name) const override {
    if (const auto it = presented_.find(name); it != presented_.end()) return &tensors_[it->second];
    const auto it = kept_.find(stored_->FindTensor(name));
    return it == kept_.end() ? nullptr : it->second;
  }
  std::string NameInFile(std::string_view name) const override { return stored_->NameInFile(name); }
  bool has_data() const override { return stored_->has_data(); }
  int FileDescriptor(const TensorInfo& tensor) const override {
    return stored_->FileDescriptor(tensor);
  }
  void DropPages(const TensorInfo& tensor) const override {
    const auto it = weight_of_.find(&tensor);
    if (it == weight_of_.end()) return stored_->DropPages(tensor);
    for (const TensorInfo* part : it->second->Stored()) stored_->DropPages(*part);
  }
  void DropPages() const override { stored_->DropPages(); }
  const PackedWeight* Packed(const TensorInfo& tensor) const override {
    const auto it = weight_of_.find(&tensor);
    return it == weight_of_.end() || tensor.file == kExpanded ? nullptr : it->second;
  }

 protected:
  absl::Span<const uint8_t> FileBytes(int file) const override {
    return file == kExpanded ? expanded_ : TensorSource::FileBytes(*stored_, file);
  }

 private:
  absl::Status Present(const std::string& name, const PackedWeight& weight, bool router) {
    const TensorType type = router ? TensorType::kBf16 : PackedType(weight.scheme, weight.columns);
    names_.push_back(stored_->NameInFile(name));
    presented_[name] = tensors_.size();
    tensors_.push_back({.name = names_.back(),
                        .type = type,
                        .shape = {weight.rows, weight.columns},
                        .offset = 0,
                        .bytes = weight.rows * RowBytes(type, weight.columns)});
    weights_.push_back(weight);
    return router ? Expand(weight, &tensors_.back()) : absl::OkStatus();
  }

  // Makes a router's elements. They are called scattered, in rows of their own order, so that they
  // are read by TensorSource::Read and not from a file.
  absl::Status Expand(const PackedWeight& weight, TensorInfo* tensor) {
    MILLRACE_ASSIGN_OR_RETURN(const PackedReader reader, PackedReader::Open(*stored_, weight));
    const uint64_t row_bytes = RowBytes(tensor->type, weight.columns);
    tensor->file = kExpanded;
    tensor->offset = expanded_.size();
    tensor->scattered = Scattered{.row_step = row_bytes, .column_step = sizeof(uint16_t)};
    std::vector<float> values(weight.columns);
    std::vector<uint16_t> rounded(weight.columns);
    for (int64_t row = 0; row < weight.rows; ++row) {
      reader.ReadFloats(row, values.data());
      std::transform(values.begin(), values.end(), rounded.begin(), FloatToBf16);
      const auto* const bytes = reinterpret_cast<const uint8_t*>(rounded.data());
      expanded_.insert(expanded_.end(), bytes, bytes + row_bytes);
    }
    return absl::OkStatus();
  }

  bool IsZero(const std::string& name) const {
    const TensorInfo* const tensor = stored_->FindTensor(name);
    if (tensor == nullptr || !IsFloat(tensor->type) || !stored_->has_data()) return false;
    const absl::Span<const uint8_t> bytes = stored_->Data(*tensor);
    return std::all_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte == 0; });
  }

  std::unique_ptr<const TensorSource> stored_;
  std::deque<std::string> names_;      // of presented tensors
  std::vector<TensorInfo> tensors_;    // the presented ones, then those that are as they were
  std::vector<PackedWeight> weights_;  // that the presented ones are made of
  std::vector<uint8_t> expanded_;      // routers' elements
  absl::flat_hash_map<std::string, size_t, StringHash, std::equal_to<>> presented_;  // GGUF's names
  absl::flat_hash_map<const TensorInfo*, const TensorInfo*> kept_;  // by those of stored_
  absl::flat_hash_map<const TensorInfo*, const PackedWeight*> weight_of_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const TensorSource>> PresentPackedWeights(
    const ModelConfig& config, const Family& family, std::unique_ptr<const TensorSource> stored) {
  auto source = std::make_unique<PackedSource>(std::move(stored));
  MILLRACE_RETURN_IF_ERROR(source->Build(config, family));
  return source;
}

}  // namespace millrace
