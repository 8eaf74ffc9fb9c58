// The elements of tensors in the typed fields of InferTensorContents: millrace.v1's, and the Open
// Inference Protocol's.
#ifndef MILLRACE_SERVER_GRPC_TENSOR_CONTENTS_H_
#define MILLRACE_SERVER_GRPC_TENSOR_CONTENTS_H_

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "base/strings.h"
#include "executors/tensor_model.h"

namespace millrace {

// The field that a datatype's elements stand in; null: there is none.
inline const char* FieldOf(DataType type) {
  switch (type) {
    case DataType::kBool:
      return "bool_contents";
    case DataType::kInt8:
    case DataType::kInt16:
    case DataType::kInt32:
      return "int_contents";
    case DataType::kInt64:
      return "int64_contents";
    case DataType::kUint8:
      return "uint_contents";
    case DataType::kFp32:
      return "fp32_contents";
    case DataType::kFp64:
      return "fp64_contents";
    case DataType::kFp16:
    case DataType::kBf16:
      break;
  }
  return nullptr;
}

// The first field that has elements; null: none has.
template <typename Contents>
const char* FilledField(const Contents& contents, const char* beside) {
  const std::pair<const char*, int> fields[] = {{"bool_contents", contents.bool_contents_size()},
                                                {"int_contents", contents.int_contents_size()},
                                                {"int64_contents", contents.int64_contents_size()},
                                                {"uint_contents", contents.uint_contents_size()},
                                                {"fp32_contents", contents.fp32_contents_size()},
                                                {"fp64_contents", contents.fp64_contents_size()}};
  for (const auto& [name, size] : fields) {
    if (size > 0 && (beside == nullptr || std::strcmp(name, beside) != 0)) return name;
  }
  // The Open Inference Protocol's own fields, which millrace.v1 has no datatypes for.
  if constexpr (requires { contents.bytes_contents_size(); }) {
    const bool other = beside == nullptr || std::string_view(beside) != "bytes_contents";
    if (contents.bytes_contents_size() > 0 && other) return "bytes_contents";
    if (contents.uint64_contents_size() > 0) return "uint64_contents";
  }
  return nullptr;
}

template <typename Number, typename Elements>
absl::Status AppendElements(const std::string& name, const Elements& elements, std::string* data) {
  data->reserve(elements.size() * sizeof(Number));
  for (int i = 0; i < elements.size(); ++i) {
    const auto number = static_cast<Number>(elements[i]);
    if constexpr (std::numeric_limits<Number>::is_integer) {
      if (number != elements[i]) {
        return absl::InvalidArgumentError(
            StrCat("input ", Printable(name), ": element ", i, " is ", elements[i],
                   "; allowed: ", int64_t{std::numeric_limits<Number>::min()}, " to ",
                   int64_t{std::numeric_limits<Number>::max()}));
      }
    }
    data->append(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  return absl::OkStatus();
}

// Appends the elements of `from` to `data`. InvalidArgument, naming the tensor and the field.
template <typename Contents>
absl::Status TakeContents(const std::string& name, const Contents& from, DataType type,
                          std::string* data) {
  const char* const field = FieldOf(type);
  if (field == nullptr) {
    return absl::InvalidArgumentError(StrCat("input ", Printable(name), ": datatype is ",
                                             DataTypeName(type),
                                             "; allowed with contents: those that have a field "
                                             "there; it can come in raw_input_contents"));
  }
  if (const char* const other = FilledField(from, field)) {
    return absl::InvalidArgumentError(StrCat("input ", Printable(name), ": has ", other,
                                             "; allowed for ", DataTypeName(type), ": ", field));
  }
  switch (type) {
    case DataType::kBool:
      return AppendElements<bool>(name, from.bool_contents(), data);
    case DataType::kInt8:
      return AppendElements<int8_t>(name, from.int_contents(), data);
    case DataType::kInt16:
      return AppendElements<int16_t>(name, from.int_contents(), data);
    case DataType::kInt32:
      return AppendElements<int32_t>(name, from.int_contents(), data);
    case DataType::kInt64:
      return AppendElements<int64_t>(name, from.int64_contents(), data);
    case DataType::kUint8:
      return AppendElements<uint8_t>(name, from.uint_contents(), data);
    case DataType::kFp32:
      return AppendElements<float>(name, from.fp32_contents(), data);
    default:
      return AppendElements<double>(name, from.fp64_contents(), data);
  }
}

template <typename Number, typename Elements>
void FillElements(const std::string& data, Elements* elements) {
  elements->Reserve(static_cast<int>(data.size() / sizeof(Number)));
  for (size_t at = 0; at < data.size(); at += sizeof(Number)) {
    Number number;
    std::memcpy(&number, data.data() + at, sizeof(Number));
    elements->Add(number);
  }
}

// The reverse of TakeContents. FP16 and BF16 have no field.
template <typename Contents>
void SetContents(DataType type, const std::string& data, Contents* to) {
  switch (type) {
    case DataType::kBool:
      return FillElements<bool>(data, to->mutable_bool_contents());
    case DataType::kInt8:
      return FillElements<int8_t>(data, to->mutable_int_contents());
    case DataType::kInt16:
      return FillElements<int16_t>(data, to->mutable_int_contents());
    case DataType::kInt32:
      return FillElements<int32_t>(data, to->mutable_int_contents());
    case DataType::kInt64:
      return FillElements<int64_t>(data, to->mutable_int64_contents());
    case DataType::kUint8:
      return FillElements<uint8_t>(data, to->mutable_uint_contents());
    case DataType::kFp32:
      return FillElements<float>(data, to->mutable_fp32_contents());
    case DataType::kFp64:
      return FillElements<double>(data, to->mutable_fp64_contents());
    case DataType::kFp16:
    case DataType::kBf16:
      return;  // raw
  }
}

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_TENSOR_CONTENTS_H_
