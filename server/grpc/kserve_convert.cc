#include "server/grpc/kserve_convert.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "server/grpc/tensor_contents.h"

namespace millrace {
namespace {

using inference::InferParameter;
using inference::InferTensorContents;
using inference::ModelInferRequest;

std::optional<int64_t> NumberOf(const InferParameter& parameter) {
  if (parameter.has_int64_param()) return parameter.int64_param();
  if (!parameter.has_uint64_param()) return std::nullopt;
  const uint64_t number = parameter.uint64_param();
  if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  return static_cast<int64_t>(number);
}

template <typename Tensor>
absl::Status RefuseParameters(std::string_view kind, const Tensor& tensor) {
  if (tensor.parameters().empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat(kind, " ", Printable(tensor.name()), ": has parameter ",
                                           Printable(tensor.parameters(0).key()),
                                           "; allowed: none"));
}

absl::Status TakeElements(const ModelInferRequest::InferInputTensor& from, WireTensor* to) {
  const InferTensorContents& contents = from.contents();
  if (from.datatype() == kBytesType) {
    if (const char* const other = FilledField(contents, "bytes_contents")) {
      return absl::InvalidArgumentError(StrCat("input ", Printable(from.name()), ": has ", other,
                                               "; allowed for BYTES: bytes_contents"));
    }
    for (const std::string& element : contents.bytes_contents()) AppendBytes(element, to->data);
    return absl::OkStatus();
  }
  const std::optional<DataType> type = FindDataType(from.datatype());
  if (!type.has_value()) {
    return absl::InvalidArgumentError(StrCat("input ", Printable(from.name()), ": datatype is \"",
                                             Printable(from.datatype()), "\"; allowed: BYTES, ",
                                             DataTypeNames()));
  }
  return TakeContents(from.name(), contents, *type, &to->data);
}

}  // namespace

absl::StatusOr<TensorQuery> FromProto(const ModelInferRequest& request) {
  TensorQuery query{.model = request.model_name(), .version = request.model_version()};
  const bool raw = request.raw_input_contents_size() > 0;
  if (raw && request.raw_input_contents_size() != request.inputs_size()) {
    return absl::InvalidArgumentError(
        StrCat("raw_input_contents: has ", request.raw_input_contents_size(),
               " elements; allowed: none, or one for each of ", request.inputs_size(), " inputs"));
  }
  for (int i = 0; i < request.inputs_size(); ++i) {
    const ModelInferRequest::InferInputTensor& from = request.inputs(i);
    MILLRACE_RETURN_IF_ERROR(RefuseParameters("input", from));
    WireTensor& input =
        query.inputs.emplace_back(WireTensor{.name = from.name(), .datatype = from.datatype()});
    input.shape.assign(from.shape().begin(), from.shape().end());
    if (!raw) {
      MILLRACE_RETURN_IF_ERROR(TakeElements(from, &input));
    } else if (const char* const field = FilledField(from.contents(), nullptr)) {
      return absl::InvalidArgumentError(StrCat("input ", Printable(from.name()), ": has ", field,
                                               "; allowed beside raw_input_contents: none"));
    } else {
      input.data = request.raw_input_contents(i);
    }
  }
  for (const auto& output : request.outputs()) {
    MILLRACE_RETURN_IF_ERROR(RefuseParameters("output", output));
    query.outputs.push_back(output.name());
  }
  for (const inference::InferParameterEntry& parameter : request.parameters()) {
    query.parameters.push_back({parameter.key(), NumberOf(parameter.value())});
  }
  return query;
}

void SetOutputs(std::vector<WireTensor> outputs, bool raw,
                inference::ModelInferResponse& response) {
  raw = raw || std::any_of(outputs.begin(), outputs.end(), [](const WireTensor& output) {
          const std::optional<DataType> type = FindDataType(output.datatype);
          return !type.has_value() || FieldOf(*type) == nullptr;
        });
  for (WireTensor& output : outputs) {
    inference::ModelInferResponse::InferOutputTensor& to = *response.add_outputs();
    to.set_name(std::move(output.name));
    to.set_datatype(output.datatype);
    to.mutable_shape()->Add(output.shape.begin(), output.shape.end());
    if (raw) {
      response.add_raw_output_contents(std::move(output.data));
    } else {
      SetContents(*FindDataType(output.datatype), output.data, to.mutable_contents());
    }
  }
}

inference::ModelMetadataResponse ToProto(const QueryModel& model) {
  inference::ModelMetadataResponse out;
  out.set_name(model.name);
  out.add_versions(std::string(kModelVersion));
  out.set_platform(model.platform);
  const auto add = [](const std::vector<TensorMetadata>& from, auto* to) {
    for (const TensorMetadata& tensor : from) {
      auto& added = *to->Add();
      added.set_name(tensor.name);
      added.set_datatype(tensor.datatype);
      added.mutable_shape()->Add(tensor.shape.begin(), tensor.shape.end());
    }
  };
  add(model.inputs, out.mutable_inputs());
  add(model.outputs, out.mutable_outputs());
  return out;
}

}  // namespace millrace
