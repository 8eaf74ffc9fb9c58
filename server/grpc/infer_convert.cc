#include "server/grpc/infer_convert.h"

#include <cstring>
#include <limits>
#include <utility>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

using Contents = v1::InferTensorContents;

// The field that a datatype's elements stand in; null: there is none.
const char* FieldOf(DataType type) {
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
  return nullptr;
}

template <typename Number, typename Elements>
absl::Status Append(const std::string& name, const Elements& elements, std::string* data) {
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

absl::Status TakeContents(const std::string& name, const Contents& from, Tensor* to) {
  const char* const field = FieldOf(to->type);
  if (field == nullptr) {
    return absl::InvalidArgumentError(StrCat("input ", Printable(name), ": datatype is ",
                                             DataTypeName(to->type),
                                             "; allowed with contents: those that have a field "
                                             "there; it can come in raw_input_contents"));
  }
  if (const char* const other = FilledField(from, field)) {
    return absl::InvalidArgumentError(StrCat("input ", Printable(name), ": has ", other,
                                             "; allowed for ", DataTypeName(to->type), ": ",
                                             field));
  }
  switch (to->type) {
    case DataType::kBool:
      return Append<bool>(name, from.bool_contents(), &to->data);
    case DataType::kInt8:
      return Append<int8_t>(name, from.int_contents(), &to->data);
    case DataType::kInt16:
      return Append<int16_t>(name, from.int_contents(), &to->data);
    case DataType::kInt32:
      return Append<int32_t>(name, from.int_contents(), &to->data);
    case DataType::kInt64:
      return Append<int64_t>(name, from.int64_contents(), &to->data);
    case DataType::kUint8:
      return Append<uint8_t>(name, from.uint_contents(), &to->data);
    case DataType::kFp32:
      return Append<float>(name, from.fp32_contents(), &to->data);
    default:
      return Append<double>(name, from.fp64_contents(), &to->data);
  }
}

template <typename Number, typename Elements>
void Fill(const std::string& data, Elements* elements) {
  elements->Reserve(static_cast<int>(data.size() / sizeof(Number)));
  for (size_t at = 0; at < data.size(); at += sizeof(Number)) {
    Number number;
    std::memcpy(&number, data.data() + at, sizeof(Number));
    elements->Add(number);
  }
}

void SetContents(const Tensor& from, Contents* to) {
  switch (from.type) {
    case DataType::kBool:
      return Fill<bool>(from.data, to->mutable_bool_contents());
    case DataType::kInt8:
      return Fill<int8_t>(from.data, to->mutable_int_contents());
    case DataType::kInt16:
      return Fill<int16_t>(from.data, to->mutable_int_contents());
    case DataType::kInt32:
      return Fill<int32_t>(from.data, to->mutable_int_contents());
    case DataType::kInt64:
      return Fill<int64_t>(from.data, to->mutable_int64_contents());
    case DataType::kUint8:
      return Fill<uint8_t>(from.data, to->mutable_uint_contents());
    case DataType::kFp32:
      return Fill<float>(from.data, to->mutable_fp32_contents());
    case DataType::kFp64:
      return Fill<double>(from.data, to->mutable_fp64_contents());
    case DataType::kFp16:
    case DataType::kBf16:
      return;  // raw
  }
}

void SetTensor(const TensorSpec& from, v1::ModelMetadataResponse::TensorMetadata* to) {
  to->set_name(from.name);
  to->set_datatype(std::string(DataTypeName(from.type)));
  for (const Dimension& dimension : from.shape) {
    to->add_shape(dimension.name.empty() ? dimension.min : -1);
    v1::ModelMetadataResponse::Dimension& out = *to->add_dimensions();
    out.set_name(dimension.name);
    out.set_min(dimension.min);
    out.set_max(dimension.max);
  }
  if (!from.values.has_value()) return;
  to->set_min_value(from.values->min);
  to->set_max_value(from.values->max);
}

}  // namespace

absl::StatusOr<std::vector<NamedTensor>> InputsFromProto(const v1::InferRequest& request) {
  const bool raw = request.raw_input_contents_size() > 0;
  if (raw && request.raw_input_contents_size() != request.inputs_size()) {
    return absl::InvalidArgumentError(
        StrCat("raw_input_contents: has ", request.raw_input_contents_size(),
               " elements; allowed: none, or one for each of ", request.inputs_size(), " inputs"));
  }
  std::vector<NamedTensor> inputs;
  for (int i = 0; i < request.inputs_size(); ++i) {
    const v1::InferRequest::InferInputTensor& from = request.inputs(i);
    const std::optional<DataType> type = FindDataType(from.datatype());
    if (!type.has_value()) {
      return absl::InvalidArgumentError(StrCat("input ", Printable(from.name()), ": datatype is \"",
                                               Printable(from.datatype()),
                                               "\"; allowed: ", DataTypeNames()));
    }
    NamedTensor input{.name = from.name(), .tensor = {.type = *type}};
    input.tensor.shape.assign(from.shape().begin(), from.shape().end());
    if (!raw) {
      MILLRACE_RETURN_IF_ERROR(TakeContents(from.name(), from.contents(), &input.tensor));
    } else if (const char* const field = FilledField(from.contents(), nullptr)) {
      return absl::InvalidArgumentError(StrCat("input ", Printable(from.name()), ": has ", field,
                                               "; allowed beside raw_input_contents: none"));
    } else {
      input.tensor.data = request.raw_input_contents(i);
    }
    inputs.push_back(std::move(input));
  }
  return inputs;
}

std::vector<std::string> OutputNames(const v1::InferRequest& request) {
  std::vector<std::string> names;
  for (const auto& output : request.outputs()) names.push_back(output.name());
  return names;
}

void AddOutput(const std::string& name, Tensor tensor, bool raw, v1::InferResponse& response) {
  v1::InferResponse::InferOutputTensor& output = *response.add_outputs();
  output.set_name(name);
  output.set_datatype(std::string(DataTypeName(tensor.type)));
  output.mutable_shape()->Add(tensor.shape.begin(), tensor.shape.end());
  if (raw) {
    response.add_raw_output_contents(std::move(tensor.data));
  } else {
    SetContents(tensor, output.mutable_contents());
  }
}

bool HasContents(DataType type) { return FieldOf(type) != nullptr; }

v1::Model ToProto(const InferEngine& engine) {
  v1::Model out;
  out.set_name(engine.model_name());
  out.set_architecture(engine.info().platform);
  out.set_created(absl::ToUnixSeconds(engine.created()));
  return out;
}

v1::ModelMetadataResponse MetadataToProto(const InferEngine& engine) {
  v1::ModelMetadataResponse out;
  out.set_name(engine.model_name());
  out.set_platform(engine.info().platform);
  for (const TensorSpec& input : engine.info().inputs) SetTensor(input, out.add_inputs());
  for (const TensorSpec& output : engine.info().outputs) SetTensor(output, out.add_outputs());
  return out;
}

}  // namespace millrace
