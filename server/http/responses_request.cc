#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "engine/sampling_table.h"
#include "server/http/json_reader.h"
#include "server/http/openai_tools.h"
#include "server/http/responses.h"

namespace millrace {
namespace {

bool ReadItemField(FieldReader& fields, std::string_view name, std::string_view allowed,
                   std::string& value) {
  if (fields.Find(name) == nullptr) fields.FailMissing(name, allowed);
  fields.Read(name, value);
  return fields.ok();
}

// Fields that items of an answer have, which come back in the next request.
void SkipItemFields(FieldReader& item) {
  std::string text;
  item.Read("id", text);
  item.Read("status", text);
}

// A string, or a list of parts whose texts are joined by line feeds.
void ReadItemContent(FieldReader& fields, std::string_view name, const std::string& path,
                     std::string_view types, ChatMessage& read) {
  const Json* field = fields.Find(name);
  if (field == nullptr) return fields.FailMissing(name, "a string or a list of parts");
  if (field->is_string()) {
    read.content = field->get<std::string>();
    return;
  }
  if (!field->is_array()) return fields.FailValue(name, *field, "a string or a list of parts");
  for (size_t i = 0; i < field->size() && fields.ok(); ++i) {
    FieldReader part((*field)[i], StrCat(path, name, "[", i, "]."), fields.unknown_fields());
    std::string type;
    std::string one;
    if (ReadItemField(part, "type", types, type)) {
      const std::vector<std::string_view> allowed = SplitList(types);
      if (std::count(allowed.begin(), allowed.end(), type) == 0)
        part.FailValue("type", type, types);
    }
    ReadItemField(part, "text", "a string", one);
    part.Refuse("annotations", Json::array({Json::array()}));
    part.Refuse("logprobs", Json::array({Json::array()}));
    part.Find("parsed");  // The openai client's parse adds it: what text says again.
    fields.Fail(part.Finish());
    read.content += StrCat(i > 0 ? "\n" : "", one);
    read.part_sizes.push_back(one.size());
  }
}

// Returns the turn of the assistant that an item belongs to: calls and reasoning are items of their
// own, and one turn of a chat.
ChatMessage& AssistantTurn(std::vector<ChatMessage>& messages, bool after_text) {
  const bool goes_on =
      !messages.empty() && messages.back().role == "assistant" &&
      (after_text || (messages.back().content.empty() && messages.back().tool_calls.empty()));
  if (!goes_on) messages.push_back({.role = "assistant"});
  return messages.back();
}

void ReadMessageItem(FieldReader& item, const std::string& path,
                     std::vector<ChatMessage>& messages) {
  constexpr std::string_view kRoles = "user, assistant, system, developer";
  ChatMessage read;
  std::string& role = read.role;
  if (!ReadItemField(item, "role", kRoles, role)) return;
  if (role != "user" && role != "assistant" && role != "system" && role != "developer") {
    return item.FailValue("role", role, kRoles);
  }
  ReadItemContent(item, "content", path, "input_text, output_text, text", read);
  std::string label;  // of an answer's parts
  item.Read("phase", label);
  if (role == "assistant") {
    ChatMessage& turn = AssistantTurn(messages, /*after_text=*/false);
    turn.content = std::move(read.content);
    turn.part_sizes = std::move(read.part_sizes);
  } else {
    messages.push_back(std::move(read));
  }
}

void ReadCallItem(FieldReader& item, std::vector<ChatMessage>& messages) {
  ToolCall call;
  ReadItemField(item, "call_id", "a string", call.id);
  ReadItemField(item, "name", "a string", call.name);
  ReadItemField(item, "arguments", "a string", call.arguments);
  item.Find("parsed_arguments");  // The openai client's parse adds it: what arguments say again.
  AssistantTurn(messages, /*after_text=*/true).tool_calls.push_back(std::move(call));
}

void ReadReasoningItem(FieldReader& item, const std::string& path,
                       std::vector<ChatMessage>& messages) {
  ChatMessage read;
  item.Find("summary");  // ours has none
  item.Refuse("encrypted_content", Json::array({""}));
  if (item.Find("content") != nullptr) {
    ReadItemContent(item, "content", path, "reasoning_text, text", read);
  }
  std::string& reasoning = AssistantTurn(messages, /*after_text=*/false).reasoning;
  reasoning += StrCat(reasoning.empty() ? "" : "\n", read.content);
}

void ReadItem(FieldReader& item, const std::string& path, std::vector<ChatMessage>& messages) {
  std::string type = "message";
  item.Read("type", type);
  SkipItemFields(item);
  if (type == "message") {
    ReadMessageItem(item, path, messages);
  } else if (type == "function_call") {
    ReadCallItem(item, messages);
  } else if (type == "function_call_output") {
    ChatMessage result{.role = "tool"};
    ReadItemField(item, "call_id", "a string", result.tool_call_id);
    ReadItemContent(item, "output", path, "input_text, output_text, text", result);
    messages.push_back(std::move(result));
  } else if (type == "reasoning") {
    ReadReasoningItem(item, path, messages);
  } else {
    item.FailValue("type", type, "message, function_call, function_call_output, reasoning");
  }
}

void ReadInput(FieldReader& fields, std::vector<ChatMessage>& messages) {
  const Json* input = fields.Find("input");
  constexpr std::string_view kAllowed = "a string or a non-empty list of items";
  if (input == nullptr) return fields.FailMissing("input", kAllowed);
  if (input->is_string()) {
    return messages.push_back({.role = "user", .content = input->get<std::string>()});
  }
  if (!input->is_array() || input->empty()) return fields.FailValue("input", *input, kAllowed);
  for (size_t i = 0; i < input->size() && fields.ok(); ++i) {
    const std::string path = StrCat("input[", i, "].");
    FieldReader item((*input)[i], path, fields.unknown_fields());
    ReadItem(item, path, messages);
    fields.Fail(item.Finish());
  }
}

// Tools are flat here. Returns them as a chat has them.
OrderedJson ReadResponsesTools(FieldReader& fields, const OrderedJson& ordered) {
  OrderedJson tools = OrderedJson::array();
  const Json* list = fields.Find("tools");
  if (list == nullptr) return tools;
  if (!list->is_array() || list->size() > kMaxTools) {
    fields.FailValue("tools", *list, StrCat("a list of at most ", kMaxTools, " tools"));
    return tools;
  }
  for (size_t i = 0; i < list->size() && fields.ok(); ++i) {
    FieldReader tool((*list)[i], StrCat("tools[", i, "]."), fields.unknown_fields());
    std::string type;
    if (ReadItemField(tool, "type", "function", type) && type != "function") {
      tool.FailValue("type", type, "function");
    }
    if (tool.ok()) CheckFunction(tool);
    fields.Fail(tool.Finish());
    OrderedJson function = ordered["tools"][i];
    if (!fields.ok()) break;
    function.erase("type");
    tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return tools;
}

ToolChoice ReadResponsesChoice(FieldReader& fields) {
  ToolChoice choice;
  constexpr std::string_view kAllowed =
      "auto, none, required, or {\"type\": \"function\", \"name\": NAME}";
  const Json* field = fields.Find("tool_choice");
  if (field == nullptr || *field == "auto") return choice;
  if (*field == "none") {
    choice.kind = ToolChoice::Kind::kNone;
  } else if (*field == "required") {
    choice.kind = ToolChoice::Kind::kAny;
  } else if (!field->is_object()) {
    fields.FailValue("tool_choice", *field, kAllowed);
  } else {
    choice.kind = ToolChoice::Kind::kNamed;
    FieldReader reader(*field, "tool_choice.", fields.unknown_fields());
    std::string type;
    if (ReadItemField(reader, "type", "function", type) && type != "function") {
      reader.FailValue("type", type, "function");
    }
    ReadItemField(reader, "name", "the name of a tool", choice.name);
    fields.Fail(reader.Finish());
  }
  return choice;
}

void ReadReasoningField(FieldReader& fields, Chat& chat) {
  const Json* field = fields.Find("reasoning");
  if (field == nullptr) return;
  FieldReader reasoning(*field, "reasoning.", fields.unknown_fields());
  ReadEffort(reasoning, "effort", chat);
  reasoning.Refuse("summary", Json::array({"auto"}));
  reasoning.Refuse("generate_summary", Json::array({"auto"}));
  fields.Fail(reasoning.Finish());
}

// The format that the answer is held to.
void ReadFormat(FieldReader& text, const OrderedJson& ordered, GenerateRequest& request) {
  const Json* field = text.Find("format");
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
    const Json* schema = format.Find("schema");
    if (schema == nullptr || !schema->is_object()) {
      format.FailValue("schema", schema == nullptr ? Json() : *schema, "a JSON schema");
    } else {
      request.grammar = GrammarSpec{.kind = GrammarSpec::Kind::kJsonSchema,
                                    .text = ordered["text"]["format"]["schema"].dump(),
                                    .closed = strict};
    }
  } else if (format.ok() && type != "text") {
    format.FailValue("type", type, kTypes);
  }
  request.grammar_field = "text.format";
  text.Fail(format.Finish());
}

void ReadTextFormat(FieldReader& fields, const OrderedJson& ordered, GenerateRequest& request) {
  const Json* field = fields.Find("text");
  if (field == nullptr) return;
  FieldReader text(*field, "text.", fields.unknown_fields());
  ReadFormat(text, ordered, request);
  text.Refuse("verbosity", Json::array({"medium"}));
  fields.Fail(text.Finish());
}

void ReadResponsesNeutral(FieldReader& fields) {
  for (std::string_view name : {"access_programs", "context_management", "conversation", "image",
                                "max_tool_calls", "moderation", "prompt", "prompt_cache_options"}) {
    fields.Refuse(name, Json::array());
  }
  fields.Refuse("background", Json::array({false}));
  fields.Refuse("include", Json::array({Json::array()}));
  fields.Refuse("service_tier", Json::array({"auto", "default"}));
  fields.Refuse("top_logprobs", Json::array({0}));
  fields.Refuse("truncation", Json::array({"disabled"}));
  fields.Refuse("prompt_cache_retention", Json::array({"in_memory"}));
  std::string label;
  for (std::string_view name : {"prompt_cache_key", "safety_identifier", "user"}) {
    fields.Read(name, label);
  }
  if (const Json* metadata = fields.Find("metadata")) {
    const bool pairs = metadata->is_object() && metadata->size() <= 16 &&
                       std::all_of(metadata->begin(), metadata->end(),
                                   [](const Json& value) { return value.is_string(); });
    if (!pairs) fields.FailValue("metadata", *metadata, "at most 16 pairs of strings");
  }
}

void ReadResponsesSampling(FieldReader& fields, const DefaultsOf& defaults, ApiRequest& request) {
  GenerateRequest& options = request.options;
  if (defaults) Apply(defaults(request.model), &options);
  fields.Read("max_output_tokens", options.max_tokens);
  if (options.max_tokens && *options.max_tokens < 1) {
    fields.FailValue("max_output_tokens", *options.max_tokens, "at least 1");
  }
  // vLLM's fields, too.
  ForEachSamplingField(
      [&](const auto& field) { fields.Read(field.number.name, options.*field.request); });
  fields.Read("parallel_tool_calls", options.parallel_tool_calls);
  fields.Read("ignore_eos", options.ignore_eos);
  fields.Read("priority", options.priority);
  fields.Read("stream", request.stream);
  if (const Json* field = fields.Find("stream_options")) {
    FieldReader stream(*field, "stream_options.", fields.unknown_fields());
    stream.Refuse("include_obfuscation", {false});
    fields.Fail(stream.Finish());
  }
}

// Repeats the request in a response: what it says, else the default.
std::string Shown(const OrderedJson& ordered, const ApiRequest& request) {
  std::string shown;
  const auto add = [&](const char* name, const OrderedJson& otherwise) {
    const auto given = ordered.find(name);
    const bool there = given != ordered.end() && !given->is_null();
    shown += StrCat(shown.empty() ? "\"" : ",\"", name, "\":", (there ? *given : otherwise).dump());
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
  add("service_tier", "default");
  add("store", true);
  add("temperature", request.options.temperature);
  add("text", {{"format", {{"type", "text"}}}});
  add("tool_choice", "auto");
  add("tools", OrderedJson::array());
  add("top_logprobs", 0);
  add("top_p", request.options.top_p);
  add("truncation", "disabled");
  return shown;
}

}  // namespace

absl::StatusOr<ResponsesRequest> ParseResponsesRequest(std::string_view body,
                                                       const DefaultsOf& defaults,
                                                       UnknownFields unknown,
                                                       bool auto_tool_choice) {
  MILLRACE_ASSIGN_OR_RETURN(const Json json, ParseJson(body));
  MILLRACE_ASSIGN_OR_RETURN(const OrderedJson ordered, ParseOrdered(body));
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
  const OrderedJson tools = ReadResponsesTools(fields, ordered);
  const ToolChoice choice = ReadResponsesChoice(fields);
  if (fields.ok()) fields.Fail(ApplyTools(tools, choice, auto_tool_choice, chat, api.options));
  ReadReasoningField(fields, chat);
  ReadTextFormat(fields, ordered, api.options);
  ReadResponsesNeutral(fields);
  MILLRACE_RETURN_IF_ERROR(fields.Finish());
  api.options.parse_reasoning = true;
  api.prompts.emplace_back(std::move(chat));
  request.shown = Shown(ordered, api);
  return request;
}

}  // namespace millrace
