#include "formats/gguf.h"

#include <cmath>
#include <cstring>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

std::string_view TypeName(const GgufValue& value) {
  static constexpr std::string_view kNames[] = {
      "an unsigned integer", "a signed integer", "a float", "a bool", "a string", "an array"};
  return kNames[value.index()];
}

}  // namespace

const GgufValue* GgufFile::Find(std::string_view key) const {
  const auto it = metadata_.find(key);
  return it == metadata_.end() ? nullptr : &it->second;
}

const TensorInfo* GgufFile::FindTensor(std::string_view name) const { return tensors_.Find(name); }

std::string GgufFile::NameInFile(std::string_view name) const {
  const TensorInfo* tensor = FindTensor(name);
  if (tensor != nullptr) return Printable(tensor->name);
  if (const StackedName stacked = StackedNameOf(name); !stacked.tensors.empty()) {
    return StrCat(stacked.tensors[0], ", expert ", stacked.expert);
  }
  return std::string(name);
}

template <typename T>
absl::StatusOr<const T*> GgufFile::Get(std::string_view key, std::string_view expected) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) {
    return absl::NotFoundError(StrCat(base_name(), ": key ", key, " is missing"));
  }
  if (const T* typed = std::get_if<T>(value)) return typed;
  return absl::InvalidArgumentError(
      StrCat(base_name(), ": key ", key, ": is ", TypeName(*value), ", must be ", expected));
}

absl::StatusOr<int64_t> GgufFile::Int(std::string_view key, int64_t min, int64_t max) const {
  const GgufValue* value = Find(key);
  int64_t number;
  bool fits = true;
  if (value != nullptr && std::holds_alternative<int64_t>(*value)) {
    number = std::get<int64_t>(*value);
  } else {
    MILLRACE_ASSIGN_OR_RETURN(const uint64_t* unsigned_number, Get<uint64_t>(key, "an integer"));
    number = static_cast<int64_t>(*unsigned_number);
    fits = number >= 0;
  }
  if (!fits || number < min || number > max) {
    return absl::InvalidArgumentError(
        StrCat(base_name(), ": key ", key, ": ",
               fits ? StrCat(number) : StrCat(static_cast<uint64_t>(number)), " is outside of ",
               min, " to ", max));
  }
  return number;
}

absl::StatusOr<double> GgufFile::Float(std::string_view key) const {
  MILLRACE_ASSIGN_OR_RETURN(const double* value, Get<double>(key, "a float"));
  if (!std::isfinite(*value)) {
    return absl::InvalidArgumentError(StrCat(base_name(), ": key ", key, ": is not finite"));
  }
  return *value;
}

absl::StatusOr<bool> GgufFile::Bool(std::string_view key) const {
  MILLRACE_ASSIGN_OR_RETURN(const bool* value, Get<bool>(key, "a bool"));
  return *value;
}

absl::StatusOr<std::string_view> GgufFile::String(std::string_view key) const {
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view* value, Get<std::string_view>(key, "a string"));
  return *value;
}

absl::StatusOr<absl::Span<const std::string_view>> GgufFile::Strings(std::string_view key) const {
  MILLRACE_ASSIGN_OR_RETURN(const GgufArray* array, Get<GgufArray>(key, "an array of strings"));
  if (array->element_type != "string") {
    return absl::InvalidArgumentError(StrCat(base_name(), ": key ", key, ": is an array of ",
                                             array->element_type, ", must be of string"));
  }
  return absl::MakeConstSpan(array->strings);
}

absl::StatusOr<std::vector<int32_t>> GgufFile::Int32s(std::string_view key) const {
  MILLRACE_ASSIGN_OR_RETURN(const GgufArray* array, Get<GgufArray>(key, "an array of int32"));
  if (array->element_type != "int32") {
    return absl::InvalidArgumentError(StrCat(base_name(), ": key ", key, ": is an array of ",
                                             array->element_type, ", must be of int32"));
  }
  std::vector<int32_t> numbers(array->count);
  if (!numbers.empty()) std::memcpy(numbers.data(), array->bytes.data(), array->bytes.size());
  return numbers;
}

}  // namespace millrace
