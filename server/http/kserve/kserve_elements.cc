#include "server/http/kserve/kserve_elements.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "executors/tensor_model.h"
#include "server/http/json/json_writer.h"

namespace millrace {
namespace {

absl::Status BadElement(const std::string& name, size_t index, const OrderedJson& value,
                        std::string_view allowed) {
  return absl::InvalidArgumentError(
      StrCat(name, "[", index, "] is ", Describe(value), "; allowed: ", allowed));
}

// Appends the elements of "data", however lists are nested in it.
class ElementReader {
 public:
  // `name` is "inputs[0].data". The type is null for BYTES.
  ElementReader(std::string name, std::optional<DataType> type, std::string* data)
      : name_(std::move(name)), type_(type), data_(*data) {}

  absl::Status Read(const OrderedJson& value) {
    if (!value.is_array()) return Append(value);
    for (const OrderedJson& item : value) MILLRACE_RETURN_IF_ERROR(Read(item));
    return absl::OkStatus();
  }

 private:
  absl::Status Append(const OrderedJson& value) {
    const size_t index = count_++;
    if (!type_.has_value()) {
      if (!value.is_string()) return BadElement(name_, index, value, "a string");
      AppendBytes(value.get_ref<const std::string&>(), data_);
      return absl::OkStatus();
    }
    switch (*type_) {
      case DataType::kBool:
        if (!value.is_boolean()) return BadElement(name_, index, value, "true or false");
        data_ += value.get<bool>() ? '\1' : '\0';
        return absl::OkStatus();
      case DataType::kUint8:
        return AppendInteger<uint8_t>(value, index);
      case DataType::kInt8:
        return AppendInteger<int8_t>(value, index);
      case DataType::kInt16:
        return AppendInteger<int16_t>(value, index);
      case DataType::kInt32:
        return AppendInteger<int32_t>(value, index);
      case DataType::kInt64:
        return AppendInteger<int64_t>(value, index);
      case DataType::kFp32:
        return AppendFloat<float>(value, index);
      case DataType::kFp64:
        return AppendFloat<double>(value, index);
      case DataType::kFp16:
      case DataType::kBf16:
        break;
    }
    return absl::InvalidArgumentError(StrCat(name_, " has elements of ", DataTypeName(*type_),
                                             "; allowed: binary_data_size in their place"));
  }

  template <typename Number>
  absl::Status AppendInteger(const OrderedJson& value, size_t index) {
    // NOLINTNEXTLINE(bugprone-signed-char-misuse): a number of 8 bits, not a character.
    constexpr auto kMin = static_cast<int64_t>(std::numeric_limits<Number>::min());
    constexpr auto kMax = static_cast<int64_t>(std::numeric_limits<Number>::max());
    const std::optional<int64_t> whole = AsInteger(value, kMin, kMax);
    if (!whole.has_value()) return BadElement(name_, index, value, StrCat(kMin, " to ", kMax));
    const auto number = static_cast<Number>(*whole);
    data_.append(reinterpret_cast<const char*>(&number), sizeof(number));
    return absl::OkStatus();
  }

  template <typename Number>
  absl::Status AppendFloat(const OrderedJson& value, size_t index) {
    if (!value.is_number()) return BadElement(name_, index, value, "a number");
    const auto number = static_cast<Number>(value.get<double>());
    data_.append(reinterpret_cast<const char*>(&number), sizeof(number));
    return absl::OkStatus();
  }

  const std::string name_;
  const std::optional<DataType> type_;
  std::string& data_;
  size_t count_ = 0;
};

template <typename Number>
void AppendElement(std::string& out, const char* at) {
  Number number;
  std::memcpy(&number, at, sizeof(number));
  if constexpr (std::is_same_v<Number, bool>) {
    out += number ? "true" : "false";
  } else if constexpr (std::is_integral_v<Number>) {
    AppendJsonNumber(out, number);
  } else if (!std::isfinite(number)) {
    out += "null";  // JSON has no such number
  } else {
    std::array<char, 40> digits;
    const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), number);
    out.append(digits.data(), end);
  }
}

template <typename Number>
void AppendAll(std::string& out, const std::string& data) {
  for (size_t at = 0; at + sizeof(Number) <= data.size(); at += sizeof(Number)) {
    if (at > 0) out += ',';
    AppendElement<Number>(out, data.data() + at);
  }
}

}  // namespace

absl::Status ReadElements(const std::string& name, const std::string& datatype,
                          const OrderedJson& json, std::string* data) {
  const std::optional<DataType> type = FindDataType(datatype);
  if (!type.has_value() && datatype != kBytesType) {
    const std::string tensor = name.substr(0, name.rfind('.'));
    return absl::InvalidArgumentError(StrCat(tensor, ".datatype is \"", Printable(datatype),
                                             "\"; allowed: BYTES, ", DataTypeNames()));
  }
  return ElementReader(name, type, data).Read(json);
}

absl::Status AppendElements(const WireTensor& tensor, std::string& out) {
  const std::optional<DataType> type = FindDataType(tensor.datatype);
  switch (type.value_or(DataType::kFp16)) {
    case DataType::kBool:
      AppendAll<bool>(out, tensor.data);
      break;
    case DataType::kUint8:
      AppendAll<uint8_t>(out, tensor.data);
      break;
    case DataType::kInt8:
      AppendAll<int8_t>(out, tensor.data);
      break;
    case DataType::kInt16:
      AppendAll<int16_t>(out, tensor.data);
      break;
    case DataType::kInt32:
      AppendAll<int32_t>(out, tensor.data);
      break;
    case DataType::kInt64:
      AppendAll<int64_t>(out, tensor.data);
      break;
    case DataType::kFp32:
      AppendAll<float>(out, tensor.data);
      break;
    case DataType::kFp64:
      AppendAll<double>(out, tensor.data);
      break;
    case DataType::kFp16:
    case DataType::kBf16:
      return absl::InvalidArgumentError(StrCat("output ", tensor.name, ": datatype is ",
                                               tensor.datatype,
                                               ", which JSON does not have; allowed: binary_data"));
  }
  return absl::OkStatus();
}

}  // namespace millrace
