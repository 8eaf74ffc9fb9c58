#include "server/http/kserve/kserve_json.h"

#include <limits>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "server/http/json/json_reader.h"
#include "server/http/json/json_writer.h"
#include "server/http/kserve/kserve_elements.h"

namespace millrace {
namespace {

constexpr char kBinarySize[] = "binary_data_size";
constexpr char kLengthHeader[] = "Inference-Header-Content-Length";

void ReadShape(FieldReader& fields, std::vector<int64_t>& shape) {
  constexpr std::string_view kAllowed = "a list of whole numbers from 0";
  const OrderedJson* list = fields.Find("shape");
  if (list == nullptr) return fields.FailMissing("shape", kAllowed);
  if (!list->is_array()) return fields.FailValue("shape", *list, kAllowed);
  for (const OrderedJson& size : *list) {
    const std::optional<int64_t> whole = AsInteger(size, 0, std::numeric_limits<int64_t>::max());
    if (!whole.has_value()) return fields.FailValue("shape", *list, kAllowed);
    shape.push_back(*whole);
  }
}

// Returns the size of a tensor in binary; nothing if it has none.
std::optional<uint64_t> ReadBinarySize(FieldReader& fields, const std::string& name,
                                       UnknownFields unknown) {
  const OrderedJson* object = fields.Find("parameters");
  if (object == nullptr) return std::nullopt;
  if (!object->is_object()) {
    fields.FailValue("parameters", *object, "an object");
    return std::nullopt;
  }
  FieldReader parameters(*object, name + "parameters.", unknown);
  std::optional<uint64_t> size;
  if (const OrderedJson* value = parameters.Find(kBinarySize)) {
    const std::optional<int64_t> whole = AsInteger(*value, 0, std::numeric_limits<int64_t>::max());
    if (whole.has_value()) {
      size = static_cast<uint64_t>(*whole);
    } else {
      parameters.FailValue(kBinarySize, *value, "a whole number from 0");
    }
  }
  if (absl::Status status = parameters.Finish(); !status.ok()) fields.Fail(std::move(status));
  return size;
}

// `binary` is what of the body is left behind the JSON.
absl::StatusOr<WireTensor> ReadInput(const OrderedJson& json, size_t index,
                                     std::string_view& binary, UnknownFields unknown) {
  const std::string path = StrCat("inputs[", index, "].");
  FieldReader fields(json, path, unknown);
  WireTensor input;
  fields.Read("name", input.name);
  fields.Read("datatype", input.datatype);
  ReadShape(fields, input.shape);
  const std::optional<uint64_t> size = ReadBinarySize(fields, path, unknown);
  const OrderedJson* const data = fields.Find("data");
  if (!size.has_value() && data == nullptr) {
    fields.FailMissing("data", StrCat("a list of elements, or parameters.", kBinarySize));
  } else if (size.has_value() && data != nullptr) {
    fields.Fail("data", "invalid_value",
                StrCat("data is given beside parameters.", kBinarySize, "; allowed: one of both"));
  } else if (data != nullptr && !data->is_array()) {
    fields.FailValue("data", *data, "a list of elements");
  }
  MILLRACE_RETURN_IF_ERROR(fields.Finish());
  if (size.has_value()) {
    if (*size > binary.size()) {
      return absl::InvalidArgumentError(StrCat(path, "parameters.", kBinarySize, " is ", *size,
                                               "; allowed: up to the ", binary.size(),
                                               " bytes that are left behind the JSON"));
    }
    input.data = binary.substr(0, *size);
    binary.remove_prefix(*size);
    return input;
  }
  MILLRACE_RETURN_IF_ERROR(ReadElements(path + "data", input.datatype, *data, &input.data));
  return input;
}

absl::Status ReadInputs(FieldReader& fields, std::string_view binary, UnknownFields unknown,
                        std::vector<WireTensor>& inputs) {
  const OrderedJson* list = fields.Find("inputs");
  if (list == nullptr || !list->is_array()) {
    fields.FailMissing("inputs", "a list of tensors");
    return absl::OkStatus();
  }
  for (const OrderedJson& json : *list) {
    if (!json.is_object()) {
      fields.FailValue(StrCat("inputs[", inputs.size(), "]"), json, "an object");
      return absl::OkStatus();
    }
    MILLRACE_ASSIGN_OR_RETURN(WireTensor input, ReadInput(json, inputs.size(), binary, unknown));
    inputs.push_back(std::move(input));
  }
  if (binary.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("the body has ", binary.size(),
                                           " bytes behind the JSON that are of no input; allowed: "
                                           "none"));
}

void ReadOptionalBool(FieldReader& fields, std::string_view name, std::optional<bool>& value) {
  if (fields.Find(name) == nullptr) return;
  bool read = false;
  fields.Read(name, read);
  value = read;
}

absl::Status ReadOutput(const OrderedJson& json, UnknownFields unknown, KserveRequest& request) {
  const std::string path = StrCat("outputs[", request.query.outputs.size(), "].");
  FieldReader fields(json, path, unknown);
  std::optional<bool>& binary = request.binary.emplace_back();
  fields.Read("name", request.query.outputs.emplace_back());
  const OrderedJson* object = fields.Find("parameters");
  if (object != nullptr && !object->is_object()) {
    fields.FailValue("parameters", *object, "an object");
  } else if (object != nullptr) {
    FieldReader parameters(*object, path + "parameters.", unknown);
    ReadOptionalBool(parameters, "binary_data", binary);
    if (absl::Status status = parameters.Finish(); !status.ok()) fields.Fail(std::move(status));
  }
  return fields.Finish();
}

void ReadOutputs(FieldReader& fields, UnknownFields unknown, KserveRequest& request) {
  const OrderedJson* list = fields.Find("outputs");
  if (list == nullptr) return;
  if (!list->is_array()) return fields.FailValue("outputs", *list, "a list of objects");
  for (const OrderedJson& json : *list) {
    if (!json.is_object()) return fields.FailValue("outputs", json, "a list of objects");
    if (absl::Status status = ReadOutput(json, unknown, request); !status.ok()) {
      return fields.Fail(std::move(status));
    }
  }
}

void ReadParameters(FieldReader& fields, KserveRequest& request) {
  const OrderedJson* object = fields.Find("parameters");
  if (object == nullptr) return;
  if (!object->is_object()) return fields.FailValue("parameters", *object, "an object");
  for (const OrderedMember* member : SortedMembers(*object)) {
    const auto& [name, value] = *member;
    if (name == "binary_data_output") {
      if (!value.is_boolean()) {
        return fields.FailValue("parameters.binary_data_output", value, "true or false");
      }
      request.binary_output = value.get<bool>();
      continue;
    }
    request.query.parameters.push_back({name, AsInteger(value, std::numeric_limits<int64_t>::min(),
                                                        std::numeric_limits<int64_t>::max())});
  }
}

void AppendShape(std::string& out, const std::vector<int64_t>& shape) {
  out += R"(,"shape":[)";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) out += ',';
    AppendJsonNumber(out, shape[i]);
  }
  out += ']';
}

template <typename Tensor>
void AppendTensorHead(std::string& out, const Tensor& tensor) {
  out += R"({"name":)";
  AppendJsonString(out, tensor.name);
  out += R"(,"datatype":)";
  AppendJsonString(out, tensor.datatype);
  AppendShape(out, tensor.shape);
}

void AppendMetadata(std::string& out, const std::vector<TensorMetadata>& tensors) {
  out += '[';
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (i > 0) out += ',';
    AppendTensorHead(out, tensors[i]);
    out += '}';
  }
  out += ']';
}

}  // namespace

absl::StatusOr<KserveRequest> ParseKserveRequest(std::string_view body,
                                                 std::optional<uint64_t> json_length,
                                                 UnknownFields unknown) {
  if (json_length.value_or(0) > body.size()) {
    return absl::InvalidArgumentError(
        StrCat(kLengthHeader, " is ", *json_length, "; allowed: at most the body's ", body.size()));
  }
  const std::string_view text = body.substr(0, json_length.value_or(body.size()));
  MILLRACE_ASSIGN_OR_RETURN(const OrderedJson json, ParseBody(text));
  FieldReader fields(json, "", unknown);
  KserveRequest request;
  fields.Read("id", request.id);
  MILLRACE_RETURN_IF_ERROR(
      ReadInputs(fields, body.substr(text.size()), unknown, request.query.inputs));
  ReadOutputs(fields, unknown, request);
  ReadParameters(fields, request);
  MILLRACE_RETURN_IF_ERROR(fields.Finish());
  return request;
}

absl::StatusOr<HttpResponse> KserveReply(const KserveRequest& request, std::string_view model,
                                         std::vector<WireTensor> outputs) {
  std::string out = R"({"model_name":)";
  AppendJsonString(out, model);
  out += R"(,"model_version":)";
  AppendJsonString(out, kModelVersion);
  if (!request.id.empty()) {
    out += R"(,"id":)";
    AppendJsonString(out, request.id);
  }
  out += R"(,"outputs":[)";
  std::string binary;
  bool any_binary = false;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (i > 0) out += ',';
    AppendTensorHead(out, outputs[i]);
    const std::optional<bool> asked =
        i < request.binary.size() ? request.binary[i] : std::optional<bool>();
    if (asked.value_or(request.binary_output)) {
      any_binary = true;
      out += StrCat(R"(,"parameters":{")", kBinarySize, "\":", outputs[i].data.size(), "}");
      binary += outputs[i].data;
    } else {
      out += R"(,"data":[)";
      MILLRACE_RETURN_IF_ERROR(AppendElements(outputs[i], out));
      out += ']';
    }
    out += '}';
  }
  out += "]}";
  if (!any_binary) return HttpResponse{.body = std::move(out)};
  HttpResponse response{.content_type = "application/octet-stream"};
  response.headers.emplace_back(kLengthHeader, StrCat(out.size()));
  response.body = std::move(out) + binary;
  return response;
}

std::string QueryModelJson(const QueryModel& model) {
  std::string out = R"({"name":)";
  AppendJsonString(out, model.name);
  out += R"(,"versions":[)";
  AppendJsonString(out, kModelVersion);
  out += R"(],"platform":)";
  AppendJsonString(out, model.platform);
  out += R"(,"inputs":)";
  AppendMetadata(out, model.inputs);
  out += R"(,"outputs":)";
  AppendMetadata(out, model.outputs);
  out += '}';
  return out;
}

}  // namespace millrace
