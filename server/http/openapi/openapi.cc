#include "server/http/openapi/openapi.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "config/help.h"
#include "engine/request/request.h"
#include "server/http/openapi/openapi_schemas.h"

namespace millrace {
namespace {

using OrderedValue = nlohmann::ordered_json;

// Which endpoints an error can come from.
enum class From { kAll, kGuarded, kNamed, kServing };

struct ErrorStatus {
  int status;
  From from;
  std::string_view meaning;
  std::string_view header = {};  // that always comes with it
};

constexpr ErrorStatus kErrors[] = {
    {400, From::kAll,
     "The request is wrong. The error names the field, what came, what is allowed."},
    {401, From::kGuarded, "The key is missing or unknown.", "WWW-Authenticate"},
    {403, From::kAll, "The Host, the Origin or the key is not allowed here."},
    {404, From::kNamed, "There is no such model, response or file."},
    {408, From::kAll, "The request did not come in time."},
    {413, From::kAll, "The body is too large."},
    {415, From::kAll, "The body is not JSON, or is compressed."},
    {417, From::kAll, "Expect is not 100-continue."},
    {429, From::kServing, "The queue or the key's limit is full.", "Retry-After"},
    {431, From::kAll, "The header is too large."},
    {500, From::kServing, "The server failed."},
    {503, From::kAll, "The server is not ready, is about to end, or has too much to do.",
     "Retry-After"},
    {504, From::kServing, "The request's time was over before its answer began."},
};

constexpr std::string_view kOpenAiError = "Error";

// Returns the schema of a path's errors.
std::string_view ErrorSchemaOf(const Api& api, std::string_view path) {
  for (const HttpProtocol& protocol : api.protocols()) {
    if (protocol.errors.has_value() && protocol.errors->owns(path)) return protocol.errors->schema;
  }
  return kOpenAiError;
}

// Returns the scope as --keys names it; empty for any.
std::string_view NameOf(Scope scope) {
  constexpr std::string_view kNames[kNumScopes] = {"", "infer", "metrics", "admin"};
  return kNames[static_cast<size_t>(scope)];
}

OrderedValue Ref(std::string_view kind, std::string_view name) {
  return {{"$ref", StrCat("#/components/", kind, "/", name)}};
}
OrderedValue SchemaRef(std::string_view name) { return {{"schema", Ref("schemas", name)}}; }

// "POST /v1/chat/completions" → "post_v1_chat_completions"
std::string OperationId(std::string_view method, std::string_view path) {
  std::string id;
  for (const char c : StrCat(method, path)) {
    if (c >= 'A' && c <= 'Z') {
      id += static_cast<char>(c - 'A' + 'a');
    } else if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) {
      id += c;
    } else if (c != '}' && id.back() != '_') {
      id += '_';
    }
  }
  return id;
}

OrderedValue Errors(const Api& api) {
  std::vector<std::string_view> shapes = {kOpenAiError};
  for (const HttpProtocol& protocol : api.protocols()) {
    if (protocol.errors.has_value()) shapes.push_back(protocol.errors->schema);
  }
  OrderedValue errors;
  for (const ErrorStatus& error : kErrors) {
    for (const std::string_view shape : shapes) {
      OrderedValue headers = {{"X-Request-Id", Ref("headers", "X-Request-Id")}};
      if (!error.header.empty()) {
        headers[std::string(error.header)] = Ref("headers", error.header);
      }
      errors[StrCat(shape, error.status)] = {{"description", error.meaning},
                                             {"headers", std::move(headers)},
                                             {"content", {{"application/json", SchemaRef(shape)}}}};
    }
  }
  return errors;
}

// Returns the schema of one event, where a request's `stream` asks for events. OpenAI's chunks end
// with the data "[DONE]", which is not JSON.
OrderedValue EventSchema(std::string_view data) {
  OrderedValue json = {{"type", "string"},
                       {"contentMediaType", "application/json"},
                       {"contentSchema", Ref("schemas", data)}};
  OrderedValue schema = {{"type", "object"}, {"required", {"data"}}};
  schema["description"] = "An event, where stream is true. An error after the first is the last.";
  schema["properties"]["event"] = {{"type", "string"}};
  schema["properties"]["data"] =
      data.ends_with("Chunk")
          ? OrderedValue{{"anyOf", OrderedValue::array({{{"enum", {"[DONE]"}}}, std::move(json)})}}
          : std::move(json);
  return {{"schema", std::move(schema)}};
}

OrderedValue Content(const OperationDoc& doc) {
  OrderedValue content;
  if (!doc.response.empty()) content["application/json"] = SchemaRef(doc.response);
  for (const std::string_view media : SplitList(doc.media)) {
    content[std::string(media)] = {{"schema", {{"type", "string"}}}};
  }
  if (!doc.stream.empty()) content["text/event-stream"] = EventSchema(doc.stream);
  return content;
}

// Returns whether the endpoint wants a key.
bool IsGuarded(const Api& api, const HttpEndpoint& endpoint) {
  return api.needs_key() && !endpoint.access.open();
}

bool ComesFrom(const Api& api, const ErrorStatus& error, const HttpEndpoint& endpoint) {
  switch (error.from) {
    case From::kAll:
      return true;
    case From::kGuarded:
      return IsGuarded(api, endpoint);
    case From::kNamed:
      return endpoint.serving || endpoint.doc.may_be_missing ||
             endpoint.fixed_path() != endpoint.path;
    case From::kServing:
      return endpoint.serving;
  }
  return true;
}

OrderedValue Parameters(const HttpEndpoint& endpoint) {
  OrderedValue parameters = OrderedValue::array();
  const std::string_view path = endpoint.path;
  const size_t begin = path.find('{');
  if (begin != std::string_view::npos) {
    const std::string_view name = path.substr(begin + 1, path.find('}') - begin - 1);
    parameters.push_back({{"name", name},
                          {"in", "path"},
                          {"required", true},
                          {"schema", {{"type", "string"}, {"minLength", 1}}}});
  }
  if (!endpoint.doc.parameters.empty()) {
    for (OrderedValue& one : OrderedValue::parse(endpoint.doc.parameters)) {
      parameters.push_back(std::move(one));
    }
  }
  parameters.push_back(Ref("parameters", "X-Request-Id"));
  if (endpoint.serving) parameters.push_back(Ref("parameters", "X-Request-Timeout-Ms"));
  return parameters;
}

OrderedValue RequestBody(const OperationDoc& doc, const OrderedValue& examples) {
  if (!doc.body_media.empty()) {
    return {{"required", true},
            {"content", {{doc.body_media, {{"schema", {{"type", "string"}, {"minLength", 1}}}}}}}};
  }
  OrderedValue media = SchemaRef(doc.request);
  if (const auto list = examples.find(doc.request); list != examples.end()) {
    size_t number = 0;
    for (const OrderedValue& example : *list)
      media["examples"][StrCat(++number)] = {{"value", example}};
  }
  return {{"required", true}, {"content", {{"application/json", std::move(media)}}}};
}

OrderedValue DescribeEndpoint(const Api& api, const HttpEndpoint& endpoint,
                              const OrderedValue& examples) {
  const OperationDoc& doc = endpoint.doc;
  OrderedValue described = {{"operationId", OperationId(endpoint.method, endpoint.path)},
                            {"summary", doc.summary},
                            {"parameters", Parameters(endpoint)}};
  if (!doc.request.empty() || !doc.body_media.empty()) {
    described["requestBody"] = RequestBody(doc, examples);
  }
  OrderedValue& success = described["responses"][StrCat(doc.status)];
  success = {{"description", doc.summary},
             {"headers", {{"X-Request-Id", Ref("headers", "X-Request-Id")}}},
             {"content", Content(doc)}};
  if (!doc.links.empty()) success["links"] = OrderedValue::parse(doc.links);
  const std::string_view schema = ErrorSchemaOf(api, endpoint.path);
  for (const ErrorStatus& error : kErrors) {
    if (!ComesFrom(api, error, endpoint)) continue;
    described["responses"][StrCat(error.status)] = Ref("responses", StrCat(schema, error.status));
  }
  if (IsGuarded(api, endpoint)) {
    described["security"] = OrderedValue::array(
        {{{"bearer", OrderedValue::array()}}, {{"key", OrderedValue::array()}}});
    const std::string_view scope = NameOf(endpoint.access.scope());
    if (!scope.empty()) described["x-scope"] = scope;
  }
  return described;
}

OrderedValue Components(const Api& api) {
  const auto header = [](std::string_view meaning, OrderedValue schema) -> OrderedValue {
    return {{"description", meaning}, {"required", true}, {"schema", std::move(schema)}};
  };
  OrderedValue components = {{"schemas", OpenApiSchemas(api.options().unknown_fields)},
                             {"responses", Errors(api)}};
  components["headers"] = {
      {"X-Request-Id", header("The request's id in logs and traces.", {{"type", "string"}})},
      {"Retry-After", header("Seconds.", {{"type", "integer"}, {"minimum", 1}})},
      {"WWW-Authenticate", header("The scheme.", {{"enum", {"Bearer"}}})}};
  components["parameters"] = {
      {"X-Request-Id",
       {{"name", "X-Request-Id"},
        {"in", "header"},
        {"description",
         "Is repeated in the answer if it is fit for a log, else the server makes one."},
        {"schema", {{"type", "string"}}}}},
      {"X-Request-Timeout-Ms",
       {{"name", "X-Request-Timeout-Ms"},
        {"in", "header"},
        {"description", "The time that the request may take; of two limits the shorter counts."},
        {"schema", {{"type", "integer"}, {"minimum", 1}, {"maximum", kMaxTimeoutMs}}}}}};
  components["securitySchemes"] = {
      {"bearer", {{"type", "http"}, {"scheme", "bearer"}}},
      {"key", {{"type", "apiKey"}, {"in", "header"}, {"name", "x-api-key"}}}};
  return components;
}

}  // namespace

std::string OpenApiJson(const Api& api) {
  const OrderedValue examples = OpenApiExamples();
  OrderedValue paths = OrderedValue::object();
  for (const HttpEndpoint* const endpoint : api.endpoints()) {
    std::string method(endpoint->method);
    std::transform(method.begin(), method.end(), method.begin(),
                   [](char c) { return static_cast<char>(c - 'A' + 'a'); });
    paths[std::string(endpoint->path)][method] = DescribeEndpoint(api, *endpoint, examples);
  }
  const OrderedValue document = {
      {"openapi", "3.1.0"},
      {"info",
       {{"title", "Millrace"},
        {"version", Version()},
        {"description", "Null means that an optional field is left out."}}},
      {"servers", OrderedValue::array({{{"url", "/"}}})},
      {"paths", std::move(paths)},
      {"components", Components(api)}};
  return document.dump();
}

HttpProtocol OpenApiProtocol() {
  struct Made {
    std::once_flag once;
    std::string json;
  };
  const auto made = std::make_shared<Made>();
  return {.endpoints = {{.method = "GET",
                         .path = "/openapi.json",
                         .access = Scope::kAny,
                         .listeners = {Listener::kPublic, Listener::kAdmin},
                         .renders = true,
                         .doc = {.summary = "Returns this document", .response = "OpenApi"},
                         .handle = [made](const HttpCall& call) -> Handled {
                           std::call_once(made->once, [&] { made->json = OpenApiJson(call.api); });
                           return HttpResponse{.body = made->json};
                         }}}};
}

}  // namespace millrace
