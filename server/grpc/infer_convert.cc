#include "server/grpc/infer_convert.h"

#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "server/grpc/tensor_contents.h"

namespace millrace {
namespace {

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
      MILLRACE_RETURN_IF_ERROR(
          TakeContents(from.name(), from.contents(), input.tensor.type, &input.tensor.data));
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
    SetContents(tensor.type, tensor.data, output.mutable_contents());
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
