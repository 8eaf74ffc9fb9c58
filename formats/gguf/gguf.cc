#include "formats/gguf/gguf.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "formats/gguf/gguf_split.h"

namespace millrace {
namespace {

// Metadata of a model that is split into several files.
constexpr std::string_view kSplitCount = "split.count";
constexpr std::string_view kSplitNumber = "split.no";              // from 0
constexpr std::string_view kSplitTensors = "split.tensors.count";  // of all files

std::string_view TypeName(const GgufValue& value) {
  static constexpr std::string_view kNames[] = {
      "an unsigned integer", "a signed integer", "a float", "a bool", "a string", "an array"};
  return kNames[value.index()];
}

// Widens numbers that lie unaligned. Those beyond int64 become negative.
template <typename T>
std::vector<int64_t> Widen(absl::Span<const uint8_t> bytes) {
  std::vector<int64_t> numbers(bytes.size() / sizeof(T));
  for (size_t i = 0; i < numbers.size(); ++i) {
    T number;
    std::memcpy(&number, &bytes[i * sizeof(T)], sizeof(T));
    numbers[i] = static_cast<int64_t>(+number);  // + makes an int of a signed char
  }
  return numbers;
}

}  // namespace

absl::StatusOr<GgufFile> GgufFile::Open(const std::string& path, GgufTensorNames names) {
  std::vector<TensorInfo> tensors;
  MILLRACE_ASSIGN_OR_RETURN(GgufFile file, Parse(path, &tensors));
  MILLRACE_RETURN_IF_ERROR(file.AddParts(path, &tensors));
  MILLRACE_RETURN_IF_ERROR(file.ListTensors(absl::MakeSpan(tensors), names));
  return file;
}

absl::Status GgufFile::AddParts(const std::string& path, std::vector<TensorInfo>* tensors) {
  if (Find(kSplitCount) == nullptr) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(const int64_t count, Int(kSplitCount, 0, kMaxGgufParts));
  if (count <= 1) return absl::OkStatus();
  const std::optional<GgufPart> named = ParseGgufPart(path);
  MILLRACE_ASSIGN_OR_RETURN(const int64_t number, Int(kSplitNumber, 0, count - 1));
  if (!named.has_value() || named->count != count || named->number != number + 1) {
    return absl::InvalidArgumentError(
        StrCat(base_name(), ": is file ", number + 1, " of ", count,
               ", must have a name like m-00001-of-00003.gguf that says so"));
  }
  if (number != 0) {
    return absl::InvalidArgumentError(StrCat(base_name(), ": is file ", number + 1, " of ", count,
                                             ": name the first of them, which has the metadata"));
  }
  for (int i = 1; i < count; ++i) {
    std::vector<TensorInfo> more;
    MILLRACE_ASSIGN_OR_RETURN(GgufFile part, Parse(named->Name(i + 1), &more));
    MILLRACE_RETURN_IF_ERROR(part.Int(kSplitNumber, i, i).status());
    MILLRACE_RETURN_IF_ERROR(part.Int(kSplitCount, count, count).status());
    for (TensorInfo& tensor : more) tensor.file = i;
    std::move(more.begin(), more.end(), std::back_inserter(*tensors));
    files_.push_back(std::move(part.files_[0]));
  }
  if (Find(kSplitTensors) == nullptr) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(const int64_t total,
                            Int(kSplitTensors, 0, std::numeric_limits<int64_t>::max()));
  if (static_cast<size_t>(total) == tensors->size()) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat(base_name(), ": key ", kSplitTensors, ": ", total,
                                           " tensors, but the ", count, " files have ",
                                           tensors->size()));
}

absl::Status GgufFile::ListTensors(absl::Span<TensorInfo> tensors, GgufTensorNames names) {
  const GgufValue* const value = Find("general.architecture");
  const auto* const architecture =
      value == nullptr ? nullptr : std::get_if<std::string_view>(value);
  for (TensorInfo& tensor : tensors) {
    // A linear with one output, of which converters leave the dimension out.
    if (tensor.shape.size() == 1 && tensor.name.ends_with("ffn_gate_inp_shexp.weight")) {
      tensor.shape.insert(tensor.shape.begin(), 1);
    }
    // Numbers for each head of a recurrent layer, and norms of its groups of heads, to which
    // converters add dimensions.
    for (const char* flat : {".ssm_a", ".ssm_d", ".ssm_norm.weight"}) {
      if (!tensor.name.ends_with(flat)) continue;
      tensor.shape = {std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1},
                                      std::multiplies<int64_t>())};
    }
    std::string name(tensor.name);
    if (names != nullptr) name = names(architecture == nullptr ? "" : *architecture, tensor.name);
    const bool as_it_is = name == tensor.name;
    if (as_it_is ? tensors_.Add(tensor, tensor.name) : tensors_.AddAs(tensor, std::move(name))) {
      continue;
    }
    return absl::InvalidArgumentError(StrCat(files_[tensor.file].base_name(), ": tensor ",
                                             Printable(tensor.name),
                                             ": comes twice, by another name or in another file"));
  }
  return Annotate(tensors_.CutExperts([](std::string_view name) { return std::string(name); },
                                      GateOrder::kHalves),
                  base_name());
}

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
    return absl::InvalidArgumentError(StrCat(
        base_name(), ": key ", key, ": ",
        fits ? StrCat(number) : StrCat(static_cast<uint64_t>(number)),
        min == max ? StrCat(", must be ", min) : StrCat(" is outside of ", min, " to ", max)));
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

absl::StatusOr<std::vector<int64_t>> GgufFile::Ints(std::string_view key) const {
  using Widener = std::vector<int64_t> (*)(absl::Span<const uint8_t>);
  static constexpr std::pair<std::string_view, Widener> kWideners[] = {
      {"uint8", Widen<uint8_t>},   {"int8", Widen<int8_t>},     {"uint16", Widen<uint16_t>},
      {"int16", Widen<int16_t>},   {"uint32", Widen<uint32_t>}, {"int32", Widen<int32_t>},
      {"uint64", Widen<uint64_t>}, {"int64", Widen<int64_t>}};
  MILLRACE_ASSIGN_OR_RETURN(const GgufArray* array, Get<GgufArray>(key, "an array of integers"));
  for (const auto& [type, widen] : kWideners) {
    if (type == array->element_type) return widen(array->bytes);
  }
  return absl::InvalidArgumentError(StrCat(base_name(), ": key ", key, ": is an array of ",
                                           array->element_type, ", must be of integers"));
}

}  // namespace millrace
