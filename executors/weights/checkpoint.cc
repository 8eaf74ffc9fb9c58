#include "executors/weights/checkpoint.h"

#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

constexpr std::string_view kWeight = ".weight";

// "blk.0.attn_q.weight" to "blk.0.attn_q.bias"; empty for another kind of name.
std::string BiasName(std::string_view weight) {
  if (!weight.ends_with(kWeight)) return "";
  return StrCat(weight.substr(0, weight.size() - kWeight.size()), ".bias");
}

}  // namespace

absl::StatusOr<const TensorInfo*> Checkpoint::Vector(const std::string& name) const {
  const TensorInfo* tensor = file_.FindTensor(name);
  if (tensor == nullptr) {
    return absl::NotFoundError(StrCat(file_.base_name(), ": no tensor ", name));
  }
  if (tensor->shape.size() != 1 || tensor->type != TensorType::kF32) {
    return absl::InvalidArgumentError(
        StrCat(file_.base_name(), ": tensor ", name, " is ", Traits(tensor->type).name, " ",
               ShapeString(tensor->shape), ", allowed: F32 of one dimension"));
  }
  return tensor;
}

absl::StatusOr<std::vector<const TensorInfo*>> Checkpoint::Matrices(
    const std::vector<std::string>& names) const {
  std::vector<const TensorInfo*> tensors;
  for (const std::string& name : names) {
    const TensorInfo* tensor = file_.FindTensor(name);
    if (tensor == nullptr) {
      return absl::NotFoundError(StrCat(file_.base_name(), ": no tensor ", name));
    }
    if (tensor->shape.size() != 2) {
      return absl::InvalidArgumentError(StrCat(file_.base_name(), ": tensor ", name, " is ",
                                               ShapeString(tensor->shape),
                                               ", allowed: two dimensions"));
    }
    if (file_.FindTensor(BiasName(name)) != nullptr) {
      return absl::UnimplementedError(
          StrCat(file_.base_name(), ": tensor ", BiasName(name), ": biases are not supported"));
    }
    if (!tensors.empty() &&
        (tensor->type != tensors[0]->type || tensor->shape[1] != tensors[0]->shape[1])) {
      return absl::UnimplementedError(
          StrCat(file_.base_name(), ": tensor ", name, " is ", Traits(tensor->type).name, " ",
                 ShapeString(tensor->shape), " but ", names[0], " is ",
                 Traits(tensors[0]->type).name, " ", ShapeString(tensors[0]->shape),
                 "; allowed: one type and input size, as they run as one"));
    }
    tensors.push_back(tensor);
  }
  return tensors;
}

}  // namespace millrace
