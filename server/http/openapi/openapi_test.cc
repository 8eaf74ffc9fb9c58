// /openapi.json against the routes and the readers that it describes.
#include "server/http/openapi/openapi.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/strings.h"
#include "server/http/all_protocols.h"
#include "server/http/api/api.h"
#include "server/http/endpoint_test_util.h"
#include "server/http/json/json_reader.h"
#include "server/http/kserve/kserve_json.h"
#include "server/http/messages/messages.h"
#include "server/http/openai/openai_request.h"
#include "server/http/openai/scoring.h"
#include "server/http/openapi/openapi_schemas.h"
#include "server/http/responses/responses.h"

namespace millrace {
namespace {

using ::testing::IsEmpty;
using OrderedValue = nlohmann::ordered_json;

// Collects the names of the fields of a schema, as FieldTrace has them.
void AddNames(const OrderedValue& schemas, const OrderedValue& schema, const std::string& path,
              std::set<std::string>& names) {
  if (const auto ref = schema.find("$ref"); ref != schema.end()) {
    const std::string_view name = ref->get_ref<const std::string&>();
    AddNames(schemas, schemas.at(std::string(name.substr(name.rfind('/') + 1))), path, names);
  }
  if (const auto any = schema.find("anyOf"); any != schema.end()) {
    for (const OrderedValue& one : *any) AddNames(schemas, one, path, names);
  }
  if (const auto items = schema.find("items"); items != schema.end()) {
    AddNames(schemas, *items, path + "[]", names);
  }
  if (const auto properties = schema.find("properties"); properties != schema.end()) {
    for (const auto& [name, inner] : properties->items()) {
      const std::string full = StrCat(path, path.empty() ? "" : ".", name);
      names.insert(full);
      AddNames(schemas, inner, full, names);
    }
  }
}

std::set<std::string> Without(const std::set<std::string>& all, const std::set<std::string>& some) {
  std::set<std::string> rest;
  for (const std::string& name : all) {
    if (!some.contains(name)) rest.insert(name);
  }
  return rest;
}

struct Reader {
  std::string request;
  std::function<absl::Status(std::string_view body)> read;
};

const std::vector<Reader>& Readers() {
  constexpr UnknownFields kRefuse = UnknownFields::kRefuse;
  static const auto& readers = *new std::vector<Reader>{
      {"CompletionRequest",
       [](auto body) { return ParseApiRequest(ApiKind::kCompletion, body).status(); }},
      {"ChatRequest", [](auto body) { return ParseApiRequest(ApiKind::kChat, body).status(); }},
      {"MessagesRequest",
       [](auto body) {
         return ParseMessagesRequest(body, false, nullptr, kRefuse, true).status();
       }},
      {"CountTokensRequest",
       [](auto body) { return ParseMessagesRequest(body, true, nullptr, kRefuse, true).status(); }},
      {"ResponsesRequest",
       [](auto body) { return ParseResponsesRequest(body, nullptr, kRefuse, true).status(); }},
      {"EmbeddingRequest", [](auto body) { return ParseEmbeddingRequest(body).status(); }},
      {"ScoreRequest",
       [](auto body) { return ParseScoringRequest(false, body, kRefuse).status(); }},
      {"RerankRequest",
       [](auto body) { return ParseScoringRequest(true, body, kRefuse).status(); }},
      {"InferRequest",
       [](auto body) { return ParseKserveRequest(body, std::nullopt, kRefuse).status(); }},
      {"TokenizeRequest", [](auto body) { return ParseTokenizeRequest(body).status(); }},
      {"DetokenizeRequest", [](auto body) { return ParseDetokenizeRequest(body).status(); }},
  };
  return readers;
}

std::vector<OperationDoc> Docs() {
  std::vector<OperationDoc> docs;
  for (const HttpProtocol& protocol : AllProtocols()) {
    for (const HttpEndpoint& endpoint : protocol.endpoints) docs.push_back(endpoint.doc);
  }
  return docs;
}

// The examples reach every branch of the readers, or a documented field would be missing here.
TEST(OpenApiTest, ReadersLookForTheDocumentedFields) {
  const OrderedValue schemas = OpenApiSchemas(UnknownFields::kRefuse);
  const OrderedValue examples = OpenApiExamples();
  for (const Reader& reader : Readers()) {
    std::set<std::string> documented;
    AddNames(schemas, schemas.at(reader.request), "", documented);
    const FieldTrace read;
    for (const OrderedValue& example : examples.at(reader.request)) {
      const absl::Status status = reader.read(example.dump());
      EXPECT_TRUE(status.ok()) << reader.request << " " << example << ": " << status;
    }
    // A conversation's tokens are counted with the shapes of MessagesRequest, which it traces.
    if (reader.request == "CountTokensRequest") {
      for (const OrderedValue& example : examples.at("MessagesRequest"))
        (void)reader.read(example.dump());
    }
    EXPECT_THAT(Without(documented, read.names()), IsEmpty()) << "not read: " << reader.request;
    EXPECT_THAT(Without(read.names(), documented), IsEmpty())
        << "not documented: " << reader.request;
  }
}

TEST(OpenApiTest, EveryReferenceHasItsSchema) {
  const OrderedValue schemas = OpenApiSchemas(UnknownFields::kRefuse);
  std::set<std::string> missing;
  const std::function<void(const OrderedValue&)> walk = [&](const OrderedValue& value) {
    if (value.is_object() && value.contains("$ref")) {
      const std::string_view name = value["$ref"].get_ref<const std::string&>();
      const std::string last(name.substr(name.rfind('/') + 1));
      if (!schemas.contains(last)) missing.insert(last);
    }
    if (!value.is_structured()) return;
    for (const OrderedValue& inner : value) walk(inner);
  };
  walk(schemas);
  for (const OperationDoc& doc : Docs()) {
    for (const std::string_view name : {doc.request, doc.response, doc.stream}) {
      if (!name.empty() && !schemas.contains(std::string(name))) missing.insert(std::string(name));
    }
  }
  EXPECT_THAT(missing, IsEmpty());
}

// Every request's schema has a reader that holds it to the code.
TEST(OpenApiTest, EveryBodyHasAReader) {
  std::set<std::string> bodies;
  std::set<std::string> read;
  for (const OperationDoc& doc : Docs()) {
    if (!doc.request.empty()) bodies.insert(std::string(doc.request));
  }
  for (const Reader& reader : Readers()) read.insert(reader.request);
  EXPECT_EQ(bodies, read);
}

TEST(OpenApiTest, UnknownFieldsAreDocumentedAsTheyAreTaken) {
  const OrderedValue closed = OpenApiSchemas(UnknownFields::kRefuse)["ChatRequest"];
  EXPECT_EQ(closed["additionalProperties"], false);
  EXPECT_FALSE(
      OpenApiSchemas(UnknownFields::kIgnore)["ChatRequest"].contains("additionalProperties"));
  EXPECT_EQ(closed["properties"]["top_p"]["exclusiveMinimum"], 0);  // sampling_params.h
  EXPECT_EQ(closed["properties"]["top_p"]["type"], OrderedValue::array({"number", "null"}));
  EXPECT_EQ(closed["properties"]["return_prompt_text"]["enum"],
            OrderedValue::array({false, nullptr}));
}

class OpenApiRoutesTest : public testing::Test {
 protected:
  OrderedValue Document(const ApiOptions& options) {
    const Api api(frontend_, *HostPolicy::Make("127.0.0.1", {}, false), options, AllProtocols());
    const HttpRequestHead head{.method = "GET", .path = "/openapi.json", .host = "localhost"};
    const Handled handled = api.Handle(head, "", [] {});
    return OrderedValue::parse(std::get<HttpResponse>(handled).body);
  }

  ScriptedFrontend frontend_{"secret"};
};

// The document is made of the endpoints: what is to be shown is that each is described.
TEST_F(OpenApiRoutesTest, EveryEndpointIsDescribed) {
  for (const Listener listener : {Listener::kPublic, Listener::kAdmin}) {
    size_t described = 0;
    const OrderedValue document = Document({.listener = listener});
    for (const auto& [path, methods] : document["paths"].items()) {
      for (const auto& [method, operation] : methods.items()) {
        EXPECT_NE(operation["summary"], "") << method << " " << path;
        ++described;
      }
    }
    const Api api(frontend_, *HostPolicy::Make("127.0.0.1", {}, false), {.listener = listener},
                  AllProtocols());
    EXPECT_EQ(described, api.endpoints().size());
  }
}

TEST_F(OpenApiRoutesTest, ModelsComeInEitherForm) {
  const OrderedValue document = Document({});
  std::set<std::string> queries;
  for (const OrderedValue& parameter : document["paths"]["/v1/models"]["get"]["parameters"]) {
    if (parameter.value("in", "") == "query") queries.insert(parameter["name"]);
  }
  EXPECT_EQ(queries, (std::set<std::string>{"limit", "after_id", "before_id"}));
  const OrderedValue& schemas = document["components"]["schemas"];
  EXPECT_EQ(schemas["AnyModels"]["anyOf"].size(), 2u);
  EXPECT_TRUE(schemas["AnthropicModel"]["properties"].contains("lifecycle"));
}

TEST_F(OpenApiRoutesTest, OnlyProbesAndTheFirstPageNeedNoKey) {
  const OrderedValue document = Document({});
  std::set<std::string> open;
  for (const auto& [path, methods] : document["paths"].items()) {
    for (const OrderedValue& operation : methods) {
      if (!operation.contains("security")) open.insert(path);
    }
  }
  EXPECT_EQ(open, (std::set<std::string>{"/", "/livez", "/readyz", "/health"}));
  EXPECT_EQ(document["paths"]["/v1/completions"]["post"]["x-scope"], "infer");
}

}  // namespace
}  // namespace millrace
