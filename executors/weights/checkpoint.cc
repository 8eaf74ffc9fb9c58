#include "executors/weights/checkpoint.h"

#include <algorithm>
#include <cmath>

#include "base/status.h"
#include "base/strings.h"
#include "executors/weights/shares.h"
#include "formats/tensors/dequantize.h"

namespace millrace {
namespace {

constexpr std::string_view kWeight = ".weight";

// "blk.0.attn_q.weight" to "blk.0.attn_q" + suffix; empty for another kind of name.
std::string Beside(std::string_view weight, std::string_view suffix) {
  if (!weight.ends_with(kWeight)) return "";
  return StrCat(weight.substr(0, weight.size() - kWeight.size()), suffix);
}

std::string TypeAndShape(const TensorInfo& tensor) {
  return StrCat(Traits(tensor.type).name, " ", ShapeString(tensor.shape));
}

// The parts of one tensor that has them in groups; none where it is not made of these.
std::vector<Checkpoint::Part> GroupedParts(const std::vector<const TensorInfo*>& tensors,
                                           const Shard& shard) {
  int64_t group = 0;  // rows of all parts
  for (const Share& rows : shard.rows) {
    if (rows.total % shard.groups != 0) return {};
    group += rows.total / shard.groups;
  }
  if (tensors.size() != 1 || group * shard.groups != tensors[0]->shape[0]) return {};
  std::vector<Checkpoint::Part> parts;
  int64_t begin = 0;
  for (const Share& rows : shard.rows) {
    const int64_t run = rows.total / shard.groups;
    parts.push_back({tensors[0], begin, rows, run, group});
    begin += run;
  }
  return parts;
}

}  // namespace

absl::StatusOr<const TensorInfo*> Checkpoint::Find(const std::string& name) const {
  if (const TensorInfo* tensor = source_.FindTensor(name)) return tensor;
  return absl::NotFoundError(StrCat(source_.base_name(), ": no tensor ", source_.NameInFile(name)));
}

absl::StatusOr<const TensorInfo*> Checkpoint::Vector(const std::string& name) const {
  MILLRACE_ASSIGN_OR_RETURN(const TensorInfo* tensor, Find(name));
  if (tensor->shape.size() != 1 || !IsFloat(tensor->type)) {
    return absl::InvalidArgumentError(StrCat(source_.base_name(), ": tensor ", tensor->name, " is ",
                                             TypeAndShape(*tensor),
                                             ", allowed: F32, F16 or BF16 of one dimension"));
  }
  return tensor;
}

std::vector<float> Checkpoint::Floats(const TensorInfo& tensor) const {
  std::vector<float> floats(tensor.bytes / Traits(tensor.type).block_bytes, 1.0f);
  if (!source_.has_data()) return floats;
  std::vector<uint8_t> gathered;
  const absl::Span<const uint8_t> bytes = source_.Bytes(tensor, 0, tensor.bytes, &gathered);
  Dequantize(tensor.type, bytes, absl::MakeSpan(floats));
  return floats;
}

absl::StatusOr<std::vector<const TensorInfo*>> Checkpoint::Matrices(
    const std::vector<std::string>& names) const {
  std::vector<const TensorInfo*> tensors;
  for (const std::string& name : names) {
    MILLRACE_ASSIGN_OR_RETURN(const TensorInfo* tensor, Find(name));
    if (tensor->shape.size() != 2) {
      return absl::InvalidArgumentError(StrCat(source_.base_name(), ": tensor ", tensor->name,
                                               " is ", ShapeString(tensor->shape),
                                               ", allowed: two dimensions"));
    }
    const auto fp8 = [](const TensorInfo& part) { return part.type == TensorType::kFp8E4m3; };
    if (!tensors.empty() &&
        (fp8(*tensor) != fp8(*tensors[0]) || tensor->shape[1] != tensors[0]->shape[1])) {
      return absl::UnimplementedError(
          StrCat(source_.base_name(), ": tensor ", tensor->name, " is ", TypeAndShape(*tensor),
                 " but ", tensors[0]->name, " is ", TypeAndShape(*tensors[0]),
                 "; allowed: one input size, and F8_E4M3 for all or none, as they run as one"));
    }
    tensors.push_back(tensor);
  }
  return tensors;
}

absl::StatusOr<std::vector<Checkpoint::Part>> Checkpoint::Parts(
    const std::vector<const TensorInfo*>& tensors, const Shard& shard) const {
  std::vector<Part> parts;
  if (shard.rows.empty()) {
    for (const TensorInfo* tensor : tensors) parts.push_back({tensor, 0, Whole(tensor->shape[0])});
    return parts;
  }
  const auto wrong_rows = [&](const TensorInfo& tensor) {
    return absl::InvalidArgumentError(
        StrCat(source_.base_name(), ": tensor ", tensor.name, " is ", TypeAndShape(tensor),
               ", allowed: the rows of the parts that it consists of"));
  };
  if (shard.groups > 1) {
    parts = GroupedParts(tensors, shard);
    if (parts.empty()) return wrong_rows(*tensors[0]);
    return parts;
  }
  auto tensor = tensors.begin();
  int64_t begin = 0;
  for (const Share& rows : shard.rows) {
    if (tensor == tensors.end() || begin + rows.total > (*tensor)->shape[0]) break;
    parts.push_back({*tensor, begin, rows});
    begin += rows.total;
    if (begin == (*tensor)->shape[0]) {
      ++tensor;
      begin = 0;
    }
  }
  if (parts.size() == shard.rows.size() && tensor == tensors.end()) return parts;
  return wrong_rows(**std::min(tensor, tensors.end() - 1));
}

absl::StatusOr<std::optional<PackedReader>> Checkpoint::Packed(const TensorInfo& tensor) const {
  const PackedWeight* const weight = source_.Packed(tensor);
  if (weight == nullptr) return std::nullopt;
  MILLRACE_ASSIGN_OR_RETURN(PackedReader reader, PackedReader::Open(source_, *weight));
  return reader;
}

std::vector<const TensorInfo*> Checkpoint::Stored(const TensorInfo& tensor) const {
  const PackedWeight* const weight = source_.Packed(tensor);
  return weight == nullptr ? std::vector<const TensorInfo*>{&tensor} : weight->Stored();
}

absl::StatusOr<const TensorInfo*> Checkpoint::Bias(const std::string& weight) const {
  const std::string name = Beside(weight, ".bias");
  if (!Has(name)) return nullptr;
  MILLRACE_ASSIGN_OR_RETURN(const TensorInfo* bias, Vector(name));
  MILLRACE_ASSIGN_OR_RETURN(const TensorInfo* matrix, Find(weight));
  if (bias->shape[0] != matrix->shape[0]) {
    return absl::InvalidArgumentError(StrCat(source_.base_name(), ": tensor ", bias->name, " is ",
                                             TypeAndShape(*bias), ", allowed: as many as ",
                                             matrix->name, " has rows, ", matrix->shape[0]));
  }
  return bias;
}

absl::StatusOr<Checkpoint::Biases> Checkpoint::BiasesOf(
    const std::vector<std::string>& weights) const {
  Biases biases;
  for (const std::string& weight : weights) {
    MILLRACE_ASSIGN_OR_RETURN(const TensorInfo* bias, Bias(weight));
    std::vector<float> values(source_.FindTensor(weight)->shape[0]);
    if (bias != nullptr && source_.has_data()) values = Floats(*bias);
    biases.values.insert(biases.values.end(), values.begin(), values.end());
    if (bias != nullptr) biases.tensors.push_back(bias);
  }
  if (biases.tensors.empty()) biases.values.clear();
  return biases;
}

absl::StatusOr<Checkpoint::Table> Checkpoint::FloatTable(const std::string& name) const {
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<const TensorInfo*> tensors, Matrices({name}));
  const TensorInfo& tensor = *tensors[0];
  if (!IsFloat(tensor.type)) {
    return absl::InvalidArgumentError(StrCat(source_.base_name(), ": tensor ", tensor.name, " is ",
                                             Traits(tensor.type).name,
                                             ", allowed: F32, F16 or BF16"));
  }
  Table table{&tensor, std::vector<float>(tensor.shape[0] * tensor.shape[1])};
  if (source_.has_data()) table.values = Floats(tensor);
  return table;
}

absl::StatusOr<Checkpoint::Table> Checkpoint::Convolution(const std::string& name) const {
  MILLRACE_ASSIGN_OR_RETURN(const TensorInfo* tensor, Find(name));
  const std::vector<int64_t>& shape = tensor->shape;
  const bool fits = shape.size() == 2 || (shape.size() == 3 && shape[1] == 1);
  if (!fits || !IsFloat(tensor->type)) {
    return absl::InvalidArgumentError(StrCat(source_.base_name(), ": tensor ", tensor->name, " is ",
                                             TypeAndShape(*tensor),
                                             ", allowed: F32, F16 or BF16 [channels, 1, width] or "
                                             "[channels, width]"));
  }
  return Table{tensor, Floats(*tensor)};
}

absl::StatusOr<std::vector<float>> Checkpoint::Scales(const std::string& name) const {
  MILLRACE_ASSIGN_OR_RETURN(const TensorInfo* tensor, Find(name));
  if (!IsFloat(tensor->type)) {
    return absl::InvalidArgumentError(StrCat(source_.base_name(), ": tensor ", tensor->name, " is ",
                                             Traits(tensor->type).name,
                                             ", allowed: F32, F16 or BF16"));
  }
  std::vector<float> scales = Floats(*tensor);
  for (const float scale : scales) {
    if (!(std::isfinite(scale) && scale > 0)) {
      return absl::InvalidArgumentError(StrCat(source_.base_name(), ": tensor ", tensor->name,
                                               " holds ", scale,
                                               ", allowed: finite scales above 0"));
    }
  }
  return scales;
}

absl::StatusOr<std::optional<float>> Checkpoint::OptionalScale(const std::string& name) const {
  if (!Has(name)) return std::nullopt;
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<float> scales, Scales(name));
  if (scales.size() != 1) {
    return absl::InvalidArgumentError(StrCat(source_.base_name(), ": tensor ",
                                             source_.NameInFile(name), " has ", scales.size(),
                                             " numbers, allowed: one"));
  }
  return scales[0];
}

absl::StatusOr<Checkpoint::Fp8Scales> Checkpoint::ScalesOf(const std::string& weight) const {
  Fp8Scales scales;
  MILLRACE_ASSIGN_OR_RETURN(scales.weight, Scales(Beside(weight, ".weight_scale")));
  MILLRACE_ASSIGN_OR_RETURN(scales.input, OptionalScale(Beside(weight, ".input_scale")));
  return scales;
}

const TensorInfo* Checkpoint::Fp8ScaleTensor(const std::string& weight) const {
  return source_.FindTensor(Beside(weight, ".weight_scale"));
}

absl::StatusOr<Checkpoint::KvScales> Checkpoint::KvScalesOf(int layer) const {
  KvScales scales;
  MILLRACE_ASSIGN_OR_RETURN(scales.k, OptionalScale(StrCat("blk.", layer, ".attn.k_scale")));
  MILLRACE_ASSIGN_OR_RETURN(scales.v, OptionalScale(StrCat("blk.", layer, ".attn.v_scale")));
  return scales;
}

}  // namespace millrace
