#include "server/http/openapi/openapi_schemas.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "engine/request/request_fields.h"
#include "server/http/json/neutral_fields.h"
#include "server/http/openai/openai_request.h"
#include "server/http/openai/openai_tools.h"

namespace millrace {
namespace {

using OrderedValue = nlohmann::ordered_json;

OrderedValue Constant(std::string_view name) {
  const std::pair<std::string_view, OrderedValue> kConstants[] = {
      {"INT32_MIN", INT32_MIN},
      {"INT32_MAX", INT32_MAX},
      {"INT64_MIN", INT64_MIN},
      {"UINT64_MAX", UINT64_MAX},
      {"kDefaultCompletionTokens", kDefaultCompletionTokens},
      {"kMaxChoices", kMaxChoices},
      {"kMaxCompletionLogprobs", kMaxCompletionLogprobs},
      {"kMaxEmbeddingInputs", kMaxEmbeddingInputs},
      {"kMaxLogitBiases", kMaxLogitBiases},
      {"kMaxPrompts", kMaxPrompts},
      {"kMaxStopStringBytes", kMaxStopStringBytes},
      {"kMaxStopStrings", kMaxStopStrings},
      {"kMaxStopTokenIds", kMaxStopTokenIds},
      {"kMaxBadWords", kMaxBadWords},
      {"kMaxBadWordBytes", kMaxBadWordBytes},
      {"kMaxTimeoutMs", kMaxTimeoutMs},
      {"kMaxTools", kMaxTools},
      {"kMaxTopLogprobs", kMaxTopLogprobs},
  };
  for (const auto& [constant, value] : kConstants) {
    if (constant == name) return value;
  }
  std::abort();  // The test builds the document.
}

template <typename Field>
OrderedValue FieldSchema(const Field& field) {
  using Given = typename Field::Given;
  OrderedValue schema;
  std::string description = StrCat("Default: ", DefaultOf(field), ". ", field.meaning);
  if constexpr (std::is_same_v<Given, bool>) {
    schema["type"] = "boolean";
  } else {
    schema["type"] = std::is_same_v<Given, float> ? "number" : "integer";
    schema[field.above_least ? "exclusiveMinimum" : "minimum"] =
        std::min(field.least, field.neutral.value_or(field.least));
    schema["maximum"] = field.most;
    description = StrCat(field.allowed, ". ", description);
  }
  schema["description"] = std::move(description);
  return schema;
}

// Adds the rows of engine/request/request_fields.h that the protocol has.
void AddFields(std::string_view protocol, OrderedValue& properties) {
  constexpr std::pair<std::string_view, FieldProtocol> kProtocols[] = {
      {"openai", kOpenAiField}, {"responses", kResponsesField}, {"messages", kMessagesField}};
  for (const auto& [name, bit] : kProtocols) {
    if (name != protocol) continue;
    ForEachRequestField([&properties, bit = bit](const auto& field) {
      if ((field.protocols & bit) != 0) properties[field.name] = FieldSchema(field);
    });
  }
}

void AddNeutral(std::string_view endpoint, OrderedValue& properties) {
  constexpr std::pair<std::string_view, Endpoint> kEndpoints[] = {
      {"completion", kCompletionEndpoint}, {"chat", kChatEndpoint},
      {"embedding", kEmbeddingEndpoint},   {"tokenize", kChatTokenizeEndpoint},
      {"scoring", kScoringEndpoint},       {"messages", kMessagesEndpoint},
      {"responses", kResponsesEndpoint},
  };
  for (const auto& [name, bit] : kEndpoints) {
    if (name != endpoint) continue;
    for (auto& [field, schema] : NeutralFieldSchemas(bit)) properties[field] = std::move(schema);
  }
}

// Lets null through beside what the schema allows.
void AllowNull(OrderedValue& schema) {
  const OrderedValue null = {{"type", "null"}};
  if (schema.contains("$ref")) {
    schema = {{"anyOf", OrderedValue::array({std::move(schema), null})}};
  } else if (schema.contains("anyOf")) {
    schema["anyOf"].push_back(null);
  } else if (schema.contains("enum")) {
    schema["enum"].push_back(nullptr);
    schema.erase("type");
  } else if (schema.contains("type") && schema["type"].is_string() && schema["type"] != "null") {
    schema["type"] = OrderedValue::array({schema["type"], "null"});
  }
}

class Schemas {
 public:
  explicit Schemas(UnknownFields unknown) : closed_(unknown == UnknownFields::kRefuse) {
    for (const OpenApiFile& file : OpenApiFiles()) {
      if (file.name == "examples") continue;
      const OrderedValue schemas = OrderedValue::parse(file.json);
      for (const auto& [name, schema] : schemas.items()) {
        all_[name] = schema;
        if (!file.name.starts_with("answers")) requests_.push_back(name);
      }
    }
  }

  OrderedValue Resolved() const {
    OrderedValue resolved = OrderedValue::object();
    for (const auto& [name, schema] : all_.items()) {
      if (name.starts_with('+')) continue;
      const bool request = std::count(requests_.begin(), requests_.end(), name) > 0;
      resolved[name] = schema;
      Resolve(request, resolved[name]);
    }
    return resolved;
  }

 private:
  void Include(OrderedValue& schema) const {
    if (!schema.contains("x-include")) return;
    const OrderedValue parts = std::move(schema["x-include"]);
    schema.erase("x-include");
    OrderedValue& properties = schema["properties"];
    for (const OrderedValue& part : parts) {
      const std::string name = part.get<std::string>();
      if (name.starts_with("fields:")) {
        AddFields(std::string_view(name).substr(name.find(':') + 1), properties);
      } else if (name.starts_with("neutral:")) {
        AddNeutral(std::string_view(name).substr(name.find(':') + 1), properties);
      } else {
        OrderedValue included = all_.at(name);
        Include(included);
        properties.update(included["properties"]);
        if (!included.contains("required")) continue;
        for (const OrderedValue& required : included["required"])
          schema["required"].push_back(required);
      }
    }
  }

  void Resolve(bool request, OrderedValue& value) const {
    if (value.is_string() && value.get_ref<const std::string&>().starts_with('=')) {
      value = Constant(value.get<std::string>().substr(1));
      return;
    }
    if (value.is_object()) {
      Include(value);
      if (const auto ref = value.find("$ref"); ref != value.end() && ref->is_string()) {
        *ref = StrCat("#/components/schemas/", ref->get<std::string>());
        return;
      }
    }
    if (!value.is_structured()) return;
    for (OrderedValue& inner : value) Resolve(request, inner);
    const bool fields = request && value.is_object() && value.contains("properties") &&
                        value.contains("type") && value["type"] == "object";
    if (fields) Close(value);
  }

  void Close(OrderedValue& object) const {
    const OrderedValue required = object.value("required", OrderedValue::array());
    for (auto& [name, schema] : object["properties"].items()) {
      if (std::count(required.begin(), required.end(), name) == 0) AllowNull(schema);
    }
    if (closed_ && !object.contains("additionalProperties")) object["additionalProperties"] = false;
  }

  const bool closed_;
  OrderedValue all_ = OrderedValue::object();
  std::vector<std::string> requests_;
};

}  // namespace

OrderedValue OpenApiSchemas(UnknownFields unknown) { return Schemas(unknown).Resolved(); }

OrderedValue OpenApiExamples() {
  for (const OpenApiFile& file : OpenApiFiles()) {
    if (file.name == "examples") return OrderedValue::parse(file.json);
  }
  return OrderedValue::object();
}

}  // namespace millrace
