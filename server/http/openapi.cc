#include "server/http/openapi.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "config/help.h"
#include "engine/request.h"
#include "server/http/kserve.h"
#include "server/http/messages.h"
#include "server/http/openapi_schemas.h"
#include "server/http/responses.h"

namespace millrace {
namespace {

using OrderedValue = nlohmann::ordered_json;

// Which routes an error can come from.
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

// Returns the schema of a path's errors.
std::string_view ErrorShape(std::string_view path) {
  if (path.starts_with(kMessagesPath)) return "MessagesError";
  return IsKservePath(path) ? "KserveError" : "Error";
}

OrderedValue Ref(std::string_view kind, std::string_view name) {
  return {{"$ref", StrCat("#/components/", kind, "/", name)}};
}
OrderedValue SchemaRef(std::string_view name) { return {{"schema", Ref("schemas", name)}}; }

const ApiOperation* OperationOf(const DocumentedRoute& route) {
  for (const ApiOperation& operation : ApiOperations()) {
    const std::string_view fixed = operation.path.substr(0, operation.path.find('{'));
    if (fixed == route.path && operation.method == route.method) return &operation;
  }
  return nullptr;
}

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

OrderedValue Errors() {
  OrderedValue errors;
  for (const ErrorStatus& error : kErrors) {
    for (const std::string_view shape : {"Error", "MessagesError", "KserveError"}) {
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

OrderedValue Content(const ApiOperation& operation) {
  OrderedValue content;
  if (!operation.response.empty()) content["application/json"] = SchemaRef(operation.response);
  for (const std::string_view media : SplitList(operation.media)) {
    content[std::string(media)] = {{"schema", {{"type", "string"}}}};
  }
  if (!operation.stream.empty()) content["text/event-stream"] = EventSchema(operation.stream);
  return content;
}

bool ComesFrom(const ErrorStatus& error, const DocumentedRoute& route,
               const ApiOperation& operation) {
  const bool names_model = operation.response == "ServerInfo" ||
                           operation.response == "ModelInfo" ||
                           operation.response == "TokenizerInfo";
  switch (error.from) {
    case From::kAll:
      return true;
    case From::kGuarded:
      return route.needs_key;
    case From::kNamed:
      return route.serving || names_model || operation.path.find('{') != std::string_view::npos;
    case From::kServing:
      return route.serving;
  }
  return true;
}

OrderedValue Parameters(const DocumentedRoute& route, const ApiOperation& operation) {
  OrderedValue parameters = OrderedValue::array();
  const size_t begin = operation.path.find('{');
  if (begin != std::string_view::npos) {
    const std::string_view name =
        operation.path.substr(begin + 1, operation.path.find('}') - begin - 1);
    parameters.push_back({{"name", name},
                          {"in", "path"},
                          {"required", true},
                          {"schema", {{"type", "string"}, {"minLength", 1}}}});
  }
  if (operation.path == "/v1/models") {
    const auto query = [&](const char* name, const char* description, OrderedValue schema) {
      parameters.push_back({{"name", name},
                            {"in", "query"},
                            {"description", description},
                            {"schema", std::move(schema)}});
    };
    query("limit", "The most models: of Anthropic's form 20 by default, of OpenAI's all.",
          {{"type", "integer"}, {"minimum", 1}, {"maximum", 1000}});
    query("after_id", "The id of the model behind which the list begins.", {{"type", "string"}});
    query("before_id", "The id of the model at which the list ends, without after_id.",
          {{"type", "string"}});
  }
  parameters.push_back(Ref("parameters", "X-Request-Id"));
  if (route.serving) parameters.push_back(Ref("parameters", "X-Request-Timeout-Ms"));
  return parameters;
}

OrderedValue RequestBody(const ApiOperation& operation, const OrderedValue& examples) {
  if (!operation.body_media.empty()) {
    return {{"required", true},
            {"content",
             {{operation.body_media, {{"schema", {{"type", "string"}, {"minLength", 1}}}}}}}};
  }
  OrderedValue media = SchemaRef(operation.request);
  if (const auto list = examples.find(operation.request); list != examples.end()) {
    size_t number = 0;
    for (const OrderedValue& example : *list)
      media["examples"][StrCat(++number)] = {{"value", example}};
  }
  return {{"required", true}, {"content", {{"application/json", std::move(media)}}}};
}

OrderedValue DescribeRoute(const DocumentedRoute& route, const ApiOperation& operation,
                           const OrderedValue& examples) {
  OrderedValue described = {{"operationId", OperationId(route.method, operation.path)},
                            {"summary", operation.summary},
                            {"parameters", Parameters(route, operation)}};
  if (!operation.request.empty() || !operation.body_media.empty()) {
    described["requestBody"] = RequestBody(operation, examples);
  }
  const char* const success = operation.path == "/admin/drain" ? "202" : "200";
  described["responses"][success] = {
      {"description", operation.summary},
      {"headers", {{"X-Request-Id", Ref("headers", "X-Request-Id")}}},
      {"content", Content(operation)}};
  if (operation.path == kResponsesPath) {
    for (const std::string_view method : {"get", "delete"}) {
      described["responses"][success]["links"][std::string(method)] = {
          {"operationId", StrCat(method, "_v1_responses_response_id")},
          {"description", "The response is kept, unless store is false."},
          {"parameters", {{"response_id", "$response.body#/id"}}}};
    }
  }
  const std::string_view shape = ErrorShape(operation.path);
  for (const ErrorStatus& error : kErrors) {
    if (!ComesFrom(error, route, operation)) continue;
    described["responses"][StrCat(error.status)] = Ref("responses", StrCat(shape, error.status));
  }
  if (route.needs_key) {
    described["security"] = OrderedValue::array(
        {{{"bearer", OrderedValue::array()}}, {{"key", OrderedValue::array()}}});
    if (!route.scope.empty()) described["x-scope"] = route.scope;
  }
  return described;
}

OrderedValue Components(UnknownFields unknown) {
  const auto header = [](std::string_view meaning, OrderedValue schema) -> OrderedValue {
    return {{"description", meaning}, {"required", true}, {"schema", std::move(schema)}};
  };
  OrderedValue components = {{"schemas", OpenApiSchemas(unknown)}, {"responses", Errors()}};
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

std::string OpenApiJson(std::span<const DocumentedRoute> routes, UnknownFields unknown) {
  const OrderedValue examples = OpenApiExamples();
  OrderedValue paths = OrderedValue::object();
  for (const DocumentedRoute& route : routes) {
    const ApiOperation bare{.path = route.path, .method = route.method, .summary = ""};
    const ApiOperation* const known = OperationOf(route);
    const ApiOperation& operation = known != nullptr ? *known : bare;
    std::string method(route.method);
    std::transform(method.begin(), method.end(), method.begin(),
                   [](char c) { return static_cast<char>(c - 'A' + 'a'); });
    paths[std::string(operation.path)][method] = DescribeRoute(route, operation, examples);
  }
  const OrderedValue document = {
      {"openapi", "3.1.0"},
      {"info",
       {{"title", "Millrace"},
        {"version", Version()},
        {"description", "Null means that an optional field is left out."}}},
      {"servers", OrderedValue::array({{{"url", "/"}}})},
      {"paths", std::move(paths)},
      {"components", Components(unknown)}};
  return document.dump();
}

}  // namespace millrace
