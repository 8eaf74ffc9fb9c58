#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "formats/json/exact_json.h"
#include "server/http/json/json_reader.h"
#include "server/http/json/neutral_fields.h"
#include "server/http/json/request_fields_reader.h"
#include "server/http/messages/messages.h"
#include "server/http/openai/openai_tools.h"

namespace millrace {
namespace {

// Prompts are cached without being asked.
void SkipCacheControl(FieldReader& fields) { fields.Find("cache_control"); }

bool ReadNeeded(FieldReader& fields, std::string_view name, std::string_view allowed,
                std::string& value) {
  if (fields.Find(name) == nullptr) fields.FailMissing(name, allowed);
  fields.Read(name, value);
  return fields.ok();
}

// A string, or a list of text blocks, which are joined by line feeds.
void ReadSystemText(FieldReader& fields, std::string_view name, const std::string& path,
                    ChatMessage& read) {
  const OrderedJson* field = fields.Find(name);
  if (field == nullptr) return;
  if (field->is_string()) {
    read.content = field->get<std::string>();
    return;
  }
  if (!field->is_array()) {
    return fields.FailValue(name, *field, "a string or a list of {\"type\": \"text\"} blocks");
  }
  for (size_t i = 0; i < field->size() && fields.ok(); ++i) {
    FieldReader block((*field)[i], StrCat(path, name, "[", i, "]."), fields.unknown_fields());
    std::string type;
    std::string part;
    if (ReadNeeded(block, "type", "text", type) && type != "text") {
      block.FailValue("type", type, "text");
    }
    ReadNeeded(block, "text", "a string", part);
    SkipCacheControl(block);
    block.Refuse("citations", OrderedJson::array({OrderedJson::array()}));
    fields.Fail(block.Finish());
    read.content += StrCat(i > 0 ? "\n" : "", part);
    read.part_sizes.push_back(part.size());
  }
}

// The part of a message's blocks that has been read.
struct Turn {
  ChatMessage message;
  bool has_text = false;
  std::vector<ChatMessage> results;  // of tools, which come before the message
};

void ReadToolUse(FieldReader& block, Turn& turn) {
  ToolCall call;
  ReadNeeded(block, "id", "a string", call.id);
  ReadNeeded(block, "name", "a string", call.name);
  block.Find("caller");  // which made the call where code calls tools: nothing that it says
  const OrderedJson* input = block.Find("input");
  if (input == nullptr || !input->is_object()) {
    return block.FailValue("input", input == nullptr ? OrderedJson() : *input, "an object");
  }
  call.arguments = DumpExact(*input);
  turn.message.tool_calls.push_back(std::move(call));
}

void ReadToolResult(FieldReader& block, const std::string& path, Turn& turn) {
  ChatMessage result{.role = "tool"};
  bool is_error = false;
  ReadNeeded(block, "tool_use_id", "a string", result.tool_call_id);
  ReadSystemText(block, "content", path, result);
  block.Read("is_error", is_error);
  if (is_error) {
    result.content = "Error: " + result.content;
    result.part_sizes.clear();
  }
  turn.results.push_back(std::move(result));
}

void ReadBlock(FieldReader& block, const std::string& path, Turn& turn) {
  const bool assistant = turn.message.role == "assistant";
  const std::string allowed =
      assistant ? "text, tool_use, thinking, redacted_thinking" : "text, tool_result";
  std::string type;
  if (!ReadNeeded(block, "type", allowed, type)) return;
  SkipCacheControl(block);
  if (type == "text") {
    std::string text;
    ReadNeeded(block, "text", "a string", text);
    block.Refuse("citations", OrderedJson::array({OrderedJson::array()}));
    turn.message.content += StrCat(std::exchange(turn.has_text, true) ? "\n" : "", text);
    turn.message.part_sizes.push_back(text.size());
  } else if (type == "tool_use" && assistant) {
    ReadToolUse(block, turn);
  } else if (type == "thinking" && assistant) {
    std::string signature;  // ours are empty
    block.Read("signature", signature);
    std::string text;
    ReadNeeded(block, "thinking", "a string", text);
    std::string& reasoning = turn.message.reasoning;
    reasoning += StrCat(reasoning.empty() ? "" : "\n", text);
  } else if (type == "redacted_thinking" && assistant) {
    std::string sealed;  // which only its maker can read
    ReadNeeded(block, "data", "a string", sealed);
  } else if (type == "tool_result" && !assistant) {
    ReadToolResult(block, path, turn);
  } else {
    block.FailValue("type", type, allowed);
  }
}

void ReadTurn(FieldReader& message, const std::string& path, std::vector<ChatMessage>& messages) {
  Turn turn;
  constexpr std::string_view kRoles = "user, assistant, system";
  std::string& role = turn.message.role;
  if (!ReadNeeded(message, "role", kRoles, role)) return;
  if (role != "user" && role != "assistant" && role != "system") {
    return message.FailValue("role", role, kRoles);
  }
  if (role == "system") {
    if (message.Find("content") == nullptr) return message.FailMissing("content", "a string");
    ReadSystemText(message, "content", path, turn.message);
    return messages.push_back(std::move(turn.message));
  }
  const OrderedJson* content = message.Find("content");
  if (content == nullptr) return message.FailMissing("content", "a string or a list of blocks");
  if (content->is_string()) {
    turn.message.content = content->get<std::string>();
    turn.has_text = true;
  } else if (!content->is_array() || content->empty()) {
    return message.FailValue("content", *content, "a string or a non-empty list of blocks");
  } else {
    for (size_t i = 0; i < content->size() && message.ok(); ++i) {
      const std::string of_block = StrCat(path, "content[", i, "].");
      FieldReader block((*content)[i], of_block, message.unknown_fields());
      ReadBlock(block, of_block, turn);
      message.Fail(block.Finish());
    }
  }
  for (ChatMessage& result : turn.results) messages.push_back(std::move(result));
  if (turn.has_text || role == "assistant") messages.push_back(std::move(turn.message));
}

void ReadTurns(FieldReader& fields, Chat& chat) {
  ChatMessage system{.role = "system"};
  ReadSystemText(fields, "system", "", system);
  if (!system.content.empty()) chat.messages.push_back(std::move(system));
  const OrderedJson* list = fields.Find("messages");
  if (list == nullptr) return fields.FailMissing("messages", "a non-empty list of messages");
  if (!list->is_array() || list->empty()) {
    return fields.FailValue("messages", *list, "a non-empty list of messages");
  }
  for (size_t i = 0; i < list->size() && fields.ok(); ++i) {
    const std::string path = StrCat("messages[", i, "].");
    FieldReader message((*list)[i], path, fields.unknown_fields());
    ReadTurn(message, path, chat.messages);
    fields.Fail(message.Finish());
  }
  if (!fields.ok() || chat.messages.back().role != "assistant") return;
  // The answer goes on with a last turn of the assistant.
  chat.add_generation_prompt = false;
  chat.continue_final_message = true;
}

// Returns whether Anthropic's servers run the tool themselves: their types end in a date. This one
// runs none, so the model is not shown it and does not call it.
bool IsServerTool(std::string_view type) {
  constexpr std::string_view kKinds[] = {"web_search_20", "web_fetch_20", "code_execution_20",
                                         "tool_search_tool_"};
  return std::any_of(std::begin(kKinds), std::end(kKinds),
                     [&](std::string_view kind) { return type.starts_with(kind); });
}

// Returns the examples of a tool's input as a part of its description.
std::string ReadExamples(FieldReader& tool) {
  std::string text;
  const OrderedJson* field = tool.Find("input_examples");
  if (field == nullptr) return text;
  const auto is_object = [](const OrderedJson& example) { return example.is_object(); };
  if (!field->is_array() || !std::all_of(field->begin(), field->end(), is_object)) {
    tool.FailValue("input_examples", *field, "a list of objects");
    return text;
  }
  for (const OrderedJson& example : *field) {
    text += StrCat(text.empty() ? "Examples of the input:" : "", "\n", DumpExact(example));
  }
  return text;
}

// Anthropic's tools as OpenAI's.
OrderedJson ReadMessagesTools(FieldReader& fields) {
  OrderedJson tools = OrderedJson::array();
  const OrderedJson* list = fields.Find("tools");
  if (list == nullptr) return tools;
  if (!list->is_array() || list->size() > kMaxTools) {
    fields.FailValue("tools", *list, StrCat("a list of at most ", kMaxTools, " tools"));
    return tools;
  }
  for (size_t i = 0; i < list->size() && fields.ok(); ++i) {
    const OrderedJson& from = (*list)[i];
    FieldReader tool(from, StrCat("tools[", i, "]."), fields.unknown_fields());
    std::string type = "custom";
    tool.Read("type", type);
    if (tool.ok() && IsServerTool(type)) continue;
    if (type != "custom") {
      tool.FailValue("type", type,
                     "custom, or web_search, web_fetch, code_execution and tool_search_tool with "
                     "their dates, which are not called here");
    }
    SkipCacheControl(tool);
    CheckFunction(tool, "input_schema");
    tool.Refuse("eager_input_streaming", OrderedJson::array({true, false}));
    bool deferred = false;  // no tool is: the model is shown all of them
    tool.Read("defer_loading", deferred);
    tool.Find("allowed_callers");  // the model's calls are the only ones
    const std::string examples = ReadExamples(tool);
    fields.Fail(tool.Finish());
    if (!fields.ok()) break;
    OrderedJson function = {{"name", from["name"]}};
    std::string description = from.value("description", OrderedJson()).is_string()
                                  ? from["description"].get<std::string>()
                                  : std::string();
    if (!examples.empty()) description += StrCat(description.empty() ? "" : "\n\n", examples);
    if (!description.empty()) function["description"] = std::move(description);
    if (from.contains("input_schema")) function["parameters"] = from["input_schema"];
    if (from.contains("strict")) function["strict"] = from["strict"];
    tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return tools;
}

ToolChoice ReadMessagesChoice(FieldReader& fields, bool& parallel) {
  ToolChoice choice;
  const OrderedJson* field = fields.Find("tool_choice");
  if (field == nullptr) return choice;
  FieldReader reader(*field, "tool_choice.", fields.unknown_fields());
  std::string type;
  bool disable_parallel = false;
  ReadNeeded(reader, "type", "auto, any, tool, none", type);
  reader.Read("disable_parallel_tool_use", disable_parallel);
  parallel = !disable_parallel;
  if (type == "tool") {
    choice.kind = ToolChoice::Kind::kNamed;
    ReadNeeded(reader, "name", "the name of a tool", choice.named.name);
  } else if (type == "any") {
    choice.kind = ToolChoice::Kind::kAny;
  } else if (type == "none") {
    choice.kind = ToolChoice::Kind::kNone;
  } else if (type != "auto" && reader.ok()) {
    reader.FailValue("type", type, "auto, any, tool, none");
  }
  fields.Fail(reader.Finish());
  return choice;
}

// Reads how many tokens the model may think, which is there if `wanted`.
void ReadBudget(FieldReader& thinking, bool wanted, GenerateRequest& options) {
  constexpr std::string_view kAllowed = "at least 1, and less than max_tokens";
  std::optional<int32_t>& budget = options.thinking_token_budget;
  thinking.Read("budget_tokens", budget);
  options.budget_field = "thinking.budget_tokens";
  if (wanted && !budget.has_value()) return thinking.FailMissing("budget_tokens", kAllowed);
  if (!budget.has_value()) return;
  if (!wanted) thinking.FailValue("budget_tokens", *budget, "only when type is enabled");
  if (*budget < 1) thinking.FailValue("budget_tokens", *budget, kAllowed);
}

void ReadThinking(FieldReader& fields, Chat& chat, ApiRequest& request) {
  const OrderedJson* field = fields.Find("thinking");
  if (field == nullptr) return;
  FieldReader thinking(*field, "thinking.", fields.unknown_fields());
  std::string type;
  std::string display = "summarized";
  constexpr std::string_view kTypes = "adaptive, between_tools, disabled, enabled";
  ReadNeeded(thinking, "type", kTypes, type);
  if (type == "disabled") {
    chat.reasoning_effort = "none";
  } else if (thinking.ok() && type != "adaptive" && type != "between_tools" && type != "enabled") {
    thinking.FailValue("type", type, kTypes);
  }
  ReadBudget(thinking, type == "enabled", request.options);
  thinking.Read("display", display);
  if (display != "summarized" && display != "omitted") {
    thinking.FailValue("display", display, "omitted, summarized");
  }
  request.include_reasoning = display != "omitted";
  fields.Fail(thinking.Finish());
}

void ReadMessagesSampling(FieldReader& fields, const DefaultsOf& defaults, ApiRequest& request) {
  GenerateRequest& options = request.options;
  if (defaults) Apply(defaults(request.model), &options);
  if (fields.Find("max_tokens") == nullptr) fields.FailMissing("max_tokens", "at least 1");
  fields.Read("max_tokens", options.max_tokens);
  if (options.max_tokens && *options.max_tokens < 1) {
    fields.FailValue("max_tokens", *options.max_tokens, "at least 1");
  }
  ReadRequestFields(fields, kMessagesField, options);
  fields.Read("stream", request.stream);
  ReadStop(fields, "stop_sequences", options.stop);
}

// Holds the answer to the JSON schema of a format: {"type": "json_schema", "schema": {…}}.
void ReadOutputFormat(FieldReader& fields, std::string_view name, const std::string& path,
                      GenerateRequest& request) {
  const OrderedJson* field = fields.Find(name);
  if (field == nullptr || !fields.ok()) return;
  const std::string full = StrCat(path, name);
  if (request.grammar) {
    return fields.FailValue(name, *field, "one of output_config.format and output_format");
  }
  FieldReader format(*field, full + ".", fields.unknown_fields());
  std::string type;
  if (ReadNeeded(format, "type", "json_schema", type) && type != "json_schema") {
    format.FailValue("type", type, "json_schema");
  }
  const OrderedJson* schema = format.Find("schema");
  if (schema == nullptr) {
    format.FailMissing("schema", "a JSON schema");
  } else if (!schema->is_object()) {
    format.FailValue("schema", *schema, "a JSON schema");
  } else if (format.ok()) {
    // Anthropic's formats are always strict.
    request.grammar = GrammarSpec{
        .kind = GrammarSpec::Kind::kJsonSchema, .text = DumpExact(*schema), .closed = true};
    request.grammar_field = full;
  }
  fields.Fail(format.Finish());
}

void ReadOutput(FieldReader& fields, Chat& chat, GenerateRequest& request) {
  if (const OrderedJson* field = fields.Find("output_config")) {
    FieldReader config(*field, "output_config.", fields.unknown_fields());
    ReadOutputFormat(config, "format", "output_config.", request);
    // Without thoughts there is none to take pains with.
    const bool disabled = chat.reasoning_effort == "none";
    ReadEffort(config, "effort", chat);
    if (disabled) chat.reasoning_effort = "none";
    config.Refuse("task_budget", OrderedJson::array());
    fields.Fail(config.Finish());
  }
  ReadOutputFormat(fields, "output_format", "", request);  // its name in betas
}

}  // namespace

absl::StatusOr<ApiRequest> ParseMessagesRequest(std::string_view body, bool count,
                                                const DefaultsOf& defaults, UnknownFields unknown,
                                                bool auto_tool_choice) {
  MILLRACE_ASSIGN_OR_RETURN(const OrderedJson json, ParseBodyAsWritten(body));
  FieldReader fields(json, "", unknown);
  ApiRequest request;
  request.kind = ApiKind::kChat;
  ReadModel(fields, request.model);
  Chat chat;
  ReadTurns(fields, chat);
  OrderedJson tools = ReadMessagesTools(fields);
  const ToolChoice choice = ReadMessagesChoice(fields, request.options.parallel_tool_calls);
  if (fields.ok()) {
    fields.Fail(
        ApplyTools(std::move(tools), choice, auto_tool_choice || count, chat, request.options));
  }
  ReadThinking(fields, chat, request);
  ReadOutput(fields, chat, request.options);
  request.options.parse_reasoning = true;
  SkipCacheControl(fields);
  CheckNeutralFields(fields, kMessagesEndpoint);
  if (!count) ReadMessagesSampling(fields, defaults, request);
  const std::optional<int32_t> budget = request.options.thinking_token_budget;
  const std::optional<int32_t> most = std::exchange(request.options.max_tokens, std::nullopt);
  // Agents ask for one number whatever the model's length is. What does not fit is cut.
  if (most.has_value()) request.options.default_max_tokens = most;
  if (budget.has_value() && most.has_value() && *budget >= *most) {
    fields.FailValue("thinking.budget_tokens", *budget,
                     StrCat("less than max_tokens, which is ", *most));
  }
  MILLRACE_RETURN_IF_ERROR(fields.Finish());
  request.prompts.emplace_back(std::move(chat));
  return request;
}

}  // namespace millrace
