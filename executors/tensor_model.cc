#include "executors/tensor_model.h"

#include <array>
#include <cstring>
#include <map>

#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

struct Traits {
  DataType type;
  std::string_view name;
  int64_t bytes;
};

// Indexed by DataType.
constexpr std::array kTraits = {
    Traits{DataType::kBool, "BOOL", 1},   Traits{DataType::kUint8, "UINT8", 1},
    Traits{DataType::kInt8, "INT8", 1},   Traits{DataType::kInt16, "INT16", 2},
    Traits{DataType::kInt32, "INT32", 4}, Traits{DataType::kInt64, "INT64", 8},
    Traits{DataType::kFp16, "FP16", 2},   Traits{DataType::kBf16, "BF16", 2},
    Traits{DataType::kFp32, "FP32", 4},   Traits{DataType::kFp64, "FP64", 8},
};

const Traits& TraitsOf(DataType type) { return kTraits[static_cast<size_t>(type)]; }

std::string ShapeText(const std::vector<int64_t>& shape) {
  return StrCat("[", absl::StrJoin(shape, ", "), "]");
}

std::string ShapeText(const std::vector<Dimension>& shape) {
  const auto append = [](std::string* out, const Dimension& dimension) {
    *out += dimension.name.empty()
                ? StrCat(dimension.min)
                : StrCat(dimension.name, " (", dimension.min, " to ", dimension.max, ")");
  };
  return StrCat("[", absl::StrJoin(shape, ", ", append), "]");
}

// Checks one input. `sizes` holds the named dimensions seen so far, with the input that defined
// them.
using Sizes = std::map<std::string, std::pair<int64_t, std::string>>;

absl::Status CheckShape(const TensorSpec& spec, const Tensor& input, Sizes& sizes) {
  bool fits = input.shape.size() == spec.shape.size();
  for (size_t i = 0; fits && i < spec.shape.size(); ++i) {
    fits = input.shape[i] >= spec.shape[i].min && input.shape[i] <= spec.shape[i].max;
  }
  if (!fits) {
    return absl::InvalidArgumentError(StrCat("input ", spec.name, ": shape is ",
                                             ShapeText(input.shape),
                                             "; allowed: ", ShapeText(spec.shape)));
  }
  for (size_t i = 0; i < spec.shape.size(); ++i) {
    const std::string& name = spec.shape[i].name;
    if (name.empty()) continue;
    const auto [seen, is_new] = sizes.try_emplace(name, input.shape[i], spec.name);
    if (is_new || seen->second.first == input.shape[i]) continue;
    return absl::InvalidArgumentError(
        StrCat("input ", spec.name, ": shape is ", ShapeText(input.shape), "; allowed: ", name,
               " is ", seen->second.first, " as in input ", seen->second.second));
  }
  return absl::OkStatus();
}

template <typename Number>
absl::Status CheckValuesAs(const TensorSpec& spec, const std::string& data) {
  for (size_t at = 0; at < data.size(); at += sizeof(Number)) {
    Number value;
    std::memcpy(&value, data.data() + at, sizeof(Number));
    if (value >= spec.values->min && value <= spec.values->max) continue;
    return absl::InvalidArgumentError(
        StrCat("input ", spec.name, ": element ", at / sizeof(Number), " is ", int64_t{value},
               "; allowed: ", spec.values->min, " to ", spec.values->max));
  }
  return absl::OkStatus();
}

absl::Status CheckBools(const TensorSpec& spec, const std::string& data) {
  for (size_t i = 0; i < data.size(); ++i) {
    if (data[i] == 0 || data[i] == 1) continue;
    return absl::InvalidArgumentError(StrCat("input ", spec.name, ": element ", i, " is ",
                                             static_cast<uint8_t>(data[i]), "; allowed: 0, 1"));
  }
  return absl::OkStatus();
}

absl::Status CheckValues(const TensorSpec& spec, const std::string& data) {
  if (spec.type == DataType::kBool) return CheckBools(spec, data);
  if (!spec.values.has_value()) return absl::OkStatus();
  switch (spec.type) {
    case DataType::kUint8:
      return CheckValuesAs<uint8_t>(spec, data);
    case DataType::kInt8:
      return CheckValuesAs<int8_t>(spec, data);
    case DataType::kInt16:
      return CheckValuesAs<int16_t>(spec, data);
    case DataType::kInt32:
      return CheckValuesAs<int32_t>(spec, data);
    case DataType::kInt64:
      return CheckValuesAs<int64_t>(spec, data);
    default:
      return absl::OkStatus();
  }
}

}  // namespace

std::string_view DataTypeName(DataType type) { return TraitsOf(type).name; }
int64_t DataTypeBytes(DataType type) { return TraitsOf(type).bytes; }

std::optional<DataType> FindDataType(std::string_view name) {
  for (const Traits& traits : kTraits) {
    if (traits.name == name) return traits.type;
  }
  return std::nullopt;
}

std::string DataTypeNames() {
  std::string names;
  for (const Traits& traits : kTraits) {
    if (!names.empty()) names += ", ";
    names += traits.name;
  }
  return names;
}

absl::Status CheckInputs(absl::Span<const TensorSpec> specs, absl::Span<const Tensor> inputs) {
  Sizes sizes;
  for (size_t i = 0; i < specs.size(); ++i) {
    const TensorSpec& spec = specs[i];
    const Tensor& input = inputs[i];
    if (input.type != spec.type) {
      return absl::InvalidArgumentError(StrCat("input ", spec.name, ": datatype is ",
                                               DataTypeName(input.type),
                                               "; allowed: ", DataTypeName(spec.type)));
    }
    MILLRACE_RETURN_IF_ERROR(CheckShape(spec, input, sizes));
    // The bounds of a package's dimensions keep this product within 63 bits.
    int64_t bytes = DataTypeBytes(spec.type);
    for (const int64_t size : input.shape) bytes *= size;
    if (static_cast<int64_t>(input.data.size()) != bytes) {
      return absl::InvalidArgumentError(
          StrCat("input ", spec.name, ": has ", input.data.size(), " bytes; allowed: ", bytes,
                 ", for ", DataTypeName(spec.type), " ", ShapeText(input.shape)));
    }
    MILLRACE_RETURN_IF_ERROR(CheckValues(spec, input.data));
  }
  return absl::OkStatus();
}

}  // namespace millrace
