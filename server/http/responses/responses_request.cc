#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "formats/json/exact_json.h"
#include "server/http/json/api_error.h"
#include "server/http/json/json_reader.h"
#include "server/http/json/json_writer.h"
#include "server/http/json/neutral_fields.h"
#include "server/http/json/request_fields_reader.h"
#include "server/http/openai/custom_tools.h"
#include "server/http/openai/openai_tools.h"
#include "server/http/responses/responses.h"
#include "server/http/responses/responses_items.h"

namespace millrace {
namespace {

constexpr std::string_view kToolTypes =
    "function, custom, namespace, or one that is not called here: web_search, image_generation, "
    "tool_search, local_shell, shell, apply_patch";

// Returns whether the model is not shown tools of this type, and so calls none: OpenAI's servers
// run them, or a model must have learned their form.
bool IsLeftOut(std::string_view type) {
  constexpr std::string_view kTypes[] = {"image_generation", "tool_search", "local_shell", "shell",
                                         "apply_patch"};
  return type.starts_with("web_search") ||
         std::find(std::begin(kTypes), std::end(kTypes), type) != std::end(kTypes);
}

// Fields of functions and custom tools that change nothing.
void SkipToolFields(FieldReader& tool) {
  bool deferred = false;  // no tool is: the model is shown all of them
  tool.Read("defer_loading", deferred);
  tool.Find("allowed_callers");  // the model's calls are the only ones
}

// Reads a function behind its type, and appends it as a chat has it.
void ReadFunctionTool(FieldReader& tool, const OrderedJson& from, OrderedJson& tools) {
  CheckFunction(tool);
  SkipToolFields(tool);
  tool.Find("output_schema");  // of results, which come as they are
  if (!tool.ok()) return;
  OrderedJson function = OrderedJson::object();
  for (const char* name : {"name", "description", "parameters", "strict"}) {
    if (from.contains(name)) function[name] = from[name];
  }
  tools.push_back({{"type", "function"}, {"function", std::move(function)}});
}

// Reads a group of tools, whose functions the model knows by their own names.
void ReadNamespace(FieldReader& group, const std::string& path, OrderedJson& tools,
                   TextTools& texts, Namespaces& namespaces) {
  std::string name;
  std::string description;
  ReadItemField(group, "name", "a string", name);
  group.Read("description", description);
  const OrderedJson* list = group.Find("tools");
  if (list == nullptr || !list->is_array()) {
    return group.FailValue("tools", list == nullptr ? OrderedJson() : *list, "a list of tools");
  }
  for (size_t i = 0; i < list->size() && group.ok(); ++i) {
    const std::string of_tool = StrCat(path, "tools[", i, "].");
    FieldReader tool((*list)[i], of_tool, group.unknown_fields());
    std::string type;
    ReadItemField(tool, "type", "function, custom", type);
    if (type == "function") {
      ReadFunctionTool(tool, (*list)[i], tools);
    } else if (type == "custom") {
      ReadCustomTool(tool, of_tool, GrammarPlace::kFormat, tools, texts);
      SkipToolFields(tool);
    } else if (tool.ok()) {
      tool.FailValue("type", type, "function, custom");
    }
    if (tool.ok()) namespaces[tools.back()["function"]["name"].get<std::string>()] = name;
    group.Fail(tool.Finish());
  }
}

// A name in two groups would not say whose tool a call is for.
absl::Status CheckNames(const OrderedJson& tools, const Namespaces& namespaces) {
  if (tools.size() > kMaxTools) {
    return FieldError(
        "tools", "invalid_value",
        StrCat("tools has ", tools.size(), " functions; allowed: at most ", kMaxTools));
  }
  if (namespaces.empty()) return absl::OkStatus();
  std::set<std::string> names;
  for (const OrderedJson& tool : tools) {
    const std::string name = tool["function"]["name"].get<std::string>();
    if (names.insert(name).second) continue;
    return FieldError("tools", "invalid_value",
                      StrCat("tools has the name ", Printable(name),
                             " twice; allowed: once, in all namespaces together"));
  }
  return absl::OkStatus();
}

// Tools are flat here. Returns them as a chat has them.
OrderedJson ReadResponsesTools(FieldReader& fields, TextTools& texts, Namespaces& namespaces) {
  OrderedJson tools = OrderedJson::array();
  const OrderedJson* list = fields.Find("tools");
  if (list == nullptr) return tools;
  if (!list->is_array() || list->size() > kMaxTools) {
    fields.FailValue("tools", *list, StrCat("a list of at most ", kMaxTools, " tools"));
    return tools;
  }
  for (size_t i = 0; i < list->size() && fields.ok(); ++i) {
    const std::string path = StrCat("tools[", i, "].");
    FieldReader tool((*list)[i], path, fields.unknown_fields());
    std::string type;
    if (!ReadItemField(tool, "type", kToolTypes, type)) {
      fields.Fail(tool.Finish());
    } else if (type == "function") {
      ReadFunctionTool(tool, (*list)[i], tools);
      fields.Fail(tool.Finish());
    } else if (type == "custom") {
      ReadCustomTool(tool, path, GrammarPlace::kFormat, tools, texts);
      SkipToolFields(tool);
      fields.Fail(tool.Finish());
    } else if (type == "namespace") {
      ReadNamespace(tool, path, tools, texts, namespaces);
      fields.Fail(tool.Finish());
    } else if (!IsLeftOut(type)) {
      tool.FailValue("type", type, kToolTypes);
      fields.Fail(tool.Finish());
    }
  }
  if (fields.ok()) fields.Fail(CheckNames(tools, namespaces));
  return tools;
}

// Reads the type and the name of a tool. Nothing: it is one that the model is not shown.
std::optional<ToolChoice::Named> ReadNamed(FieldReader& reader, bool left_out) {
  constexpr std::string_view kTypes = "function, custom";
  ToolChoice::Named named;
  std::string type;
  if (!ReadItemField(reader, "type", kTypes, type)) return std::nullopt;
  if (left_out && IsLeftOut(type)) return std::nullopt;
  if (type != "function" && type != "custom") reader.FailValue("type", type, kTypes);
  ReadItemField(reader, "name", "the name of a tool", named.name);
  named.takes_text = type == "custom";
  return named;
}

void ReadAllowedTools(FieldReader& reader, ToolChoice& choice) {
  ReadAllowedMode(reader, choice);
  const OrderedJson* tools = reader.Find("tools");
  if (tools == nullptr || !tools->is_array() || tools->empty()) {
    reader.FailValue("tools", tools == nullptr ? OrderedJson() : *tools,
                     "a non-empty list of tools");
  }
  for (size_t i = 0; reader.ok() && i < tools->size(); ++i) {
    FieldReader tool((*tools)[i], StrCat("tool_choice.tools[", i, "]."), reader.unknown_fields());
    if (const auto named = ReadNamed(tool, /*left_out=*/true)) {
      choice.allowed.push_back(*named);
      reader.Fail(tool.Finish());
    } else if (!tool.ok()) {
      reader.Fail(tool.Finish());
    }
  }
  if (!reader.ok() || !choice.allowed.empty()) return;
  // A model that is shown none of them calls none.
  if (choice.kind == ToolChoice::Kind::kAny) {
    reader.FailValue("tools", *tools, "where mode is required, one that the model is shown");
  }
  choice.kind = ToolChoice::Kind::kNone;
}

ToolChoice ReadResponsesChoice(FieldReader& fields) {
  ToolChoice choice;
  constexpr std::string_view kAllowed =
      "auto, none, required, {\"type\": \"function\", \"name\": NAME}, the same with custom, or "
      "{\"type\": \"allowed_tools\", \"mode\": MODE, \"tools\": [...]}";
  const OrderedJson* const object = ReadChoiceWord(fields, kAllowed, choice);
  if (object == nullptr) return choice;
  FieldReader reader(*object, "tool_choice.", fields.unknown_fields());
  if (const auto type = object->find("type"); type != object->end() && *type == "allowed_tools") {
    reader.Find("type");
    ReadAllowedTools(reader, choice);
  } else {
    choice.kind = ToolChoice::Kind::kNamed;
    choice.named = ReadNamed(reader, /*left_out=*/false).value_or(ToolChoice::Named());
  }
  fields.Fail(reader.Finish());
  return choice;
}

void ReadReasoningField(FieldReader& fields, Chat& chat) {
  const OrderedJson* field = fields.Find("reasoning");
  if (field == nullptr) return;
  FieldReader reasoning(*field, "reasoning.", fields.unknown_fields());
  ReadEffort(reasoning, "effort", chat);
  // Reasoning comes as it is, so that a summary is not missed.
  const OrderedJson summaries = OrderedJson::array({"auto", "concise", "detailed", "none"});
  reasoning.Refuse("summary", summaries);
  reasoning.Refuse("generate_summary", summaries);
  reasoning.Refuse("context", OrderedJson::array({"auto", "current_turn", "all_turns"}));
  reasoning.Refuse("mode", OrderedJson::array({"standard"}));
  fields.Fail(reasoning.Finish());
}

// The format that the answer is held to.
void ReadFormat(FieldReader& text, GenerateRequest& request) {
  const OrderedJson* field = text.Find("format");
  if (field == nullptr) return;
  FieldReader format(*field, "text.format.", text.unknown_fields());
  constexpr std::string_view kTypes = "text, json_object, json_schema";
  std::string type;
  ReadItemField(format, "type", kTypes, type);
  if (type == "json_object") {
    request.grammar = GrammarSpec{.kind = GrammarSpec::Kind::kJsonObject};
  } else if (type == "json_schema") {
    std::string label;
    bool strict = false;
    format.Read("name", label);
    format.Read("description", label);
    format.Read("strict", strict);
    const OrderedJson* schema = format.Find("schema");
    if (schema == nullptr || !schema->is_object()) {
      format.FailValue("schema", schema == nullptr ? OrderedJson() : *schema, "a JSON schema");
    } else {
      request.grammar = GrammarSpec{
          .kind = GrammarSpec::Kind::kJsonSchema, .text = DumpExact(*schema), .closed = strict};
    }
  } else if (format.ok() && type != "text") {
    format.FailValue("type", type, kTypes);
  }
  request.grammar_field = "text.format";
  text.Fail(format.Finish());
}

void ReadTextFormat(FieldReader& fields, GenerateRequest& request) {
  const OrderedJson* field = fields.Find("text");
  if (field == nullptr) return;
  FieldReader text(*field, "text.", fields.unknown_fields());
  ReadFormat(text, request);
  text.Refuse("verbosity", OrderedJson::array({"low", "medium", "high"}));
  fields.Fail(text.Finish());
}

// Reads what a response is to have beside its text. Of tools that are not here there is nothing,
// and reasoning comes in the open.
void ReadInclude(FieldReader& fields) {
  const OrderedJson* field = fields.Find("include");
  if (field == nullptr) return;
  if (!field->is_array()) return fields.FailValue("include", *field, "a list of strings");
  const OrderedJson empty = {
      "reasoning.encrypted_content",   "file_search_call.results",
      "web_search_call.results",       "web_search_call.action.sources",
      "message.input_image.image_url", "computer_call_output.output.image_url",
      "code_interpreter_call.outputs"};
  for (size_t i = 0; i < field->size() && fields.ok(); ++i) {
    if (IsOneOf((*field)[i], empty)) continue;
    std::vector<std::string> names;
    for (const OrderedJson& name : empty) names.push_back(name.get<std::string>());
    fields.FailValue(StrCat("include[", i, "]"), (*field)[i], JoinList(names));
  }
}

void ReadResponsesSampling(FieldReader& fields, const DefaultsOf& defaults, ApiRequest& request) {
  GenerateRequest& options = request.options;
  if (defaults) Apply(defaults(request.model), &options);
  fields.Read("max_output_tokens", options.max_tokens);
  if (options.max_tokens && *options.max_tokens < 1) {
    fields.FailValue("max_output_tokens", *options.max_tokens, "at least 1");
  }
  // Agents ask for one number whatever the model's length is. What does not fit is cut.
  if (const auto most = std::exchange(options.max_tokens, std::nullopt); most.has_value()) {
    options.default_max_tokens = most;
  }
  ReadRequestFields(fields, kResponsesField, options);
  fields.Read("parallel_tool_calls", options.parallel_tool_calls);
  fields.Read("stream", request.stream);
  if (const OrderedJson* field = fields.Find("stream_options")) {
    FieldReader stream(*field, "stream_options.", fields.unknown_fields());
    stream.Refuse("include_obfuscation", {false});
    bool usage = true;  // a response always has it
    stream.Read("include_usage", usage);
    fields.Fail(stream.Finish());
  }
}

// Repeats the request in a response: what it says, else the default.
std::string Shown(const OrderedJson& json, const ApiRequest& request) {
  std::string shown;
  const auto add = [&](const char* name, const OrderedJson& otherwise) {
    const auto given = json.find(name);
    const bool there = given != json.end() && !given->is_null();
    shown += StrCat(shown.empty() ? "\"" : ",\"", name, "\":");
    // Instructions may be of megabytes, which are written where they stay.
    if (there && given->is_string()) {
      AppendJsonString(shown, given->get_ref<const std::string&>());
    } else {
      shown += DumpExact(there ? *given : otherwise);
    }
  };
  const OrderedJson none;
  for (const char* name : {"instructions", "max_output_tokens", "previous_response_id", "user",
                           "prompt_cache_key", "safety_identifier"}) {
    add(name, none);
  }
  add("background", false);
  add("metadata", OrderedJson::object());
  add("parallel_tool_calls", true);
  add("reasoning", {{"effort", nullptr}, {"summary", nullptr}});
  add("store", true);
  add("temperature", request.options.temperature);
  add("text", {{"format", {{"type", "text"}}}});
  add("tool_choice", "auto");
  add("tools", OrderedJson::array());
  add("top_logprobs", 0);
  add("top_p", request.options.top_p);
  // Two that say what holds, whatever the request asked for.
  shown += R"(,"service_tier":"default","truncation":"disabled")";
  return shown;
}

}  // namespace

absl::StatusOr<ResponsesRequest> ParseResponsesRequest(std::string_view body,
                                                       const DefaultsOf& defaults,
                                                       UnknownFields unknown,
                                                       bool auto_tool_choice) {
  MILLRACE_ASSIGN_OR_RETURN(const OrderedJson json, ParseBodyAsWritten(body));
  FieldReader fields(json, "", unknown);
  ResponsesRequest request;
  ApiRequest& api = request.api;
  api.kind = ApiKind::kChat;
  ReadModel(fields, api.model);
  fields.Read("instructions", request.instructions);
  fields.Read("previous_response_id", request.previous_response_id);
  fields.Read("store", request.store);
  ReadInput(fields, request.conversation);
  Chat chat;
  ReadResponsesSampling(fields, defaults, api);
  OrderedJson tools = ReadResponsesTools(fields, chat.text_tools, request.namespaces);
  const ToolChoice choice = ReadResponsesChoice(fields);
  if (fields.ok()) {
    fields.Fail(ApplyTools(std::move(tools), choice, auto_tool_choice, chat, api.options));
  }
  ReadReasoningField(fields, chat);
  ReadTextFormat(fields, api.options);
  ReadInclude(fields);
  CheckNeutralFields(fields, kResponsesEndpoint);
  MILLRACE_RETURN_IF_ERROR(fields.Finish());
  api.options.parse_reasoning = true;
  api.prompts.emplace_back(std::move(chat));
  request.shown = Shown(json, api);
  return request;
}

}  // namespace millrace
