#include "server/http/openai/openai_messages.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "base/strings.h"
#include "formats/json/exact_json.h"
#include "server/http/openai/custom_tools.h"

namespace millrace {
namespace {

constexpr std::string_view kRoles = "system, developer, user, assistant, tool";

// Limits of chat_template_kwargs. A template's objects are lists of members, each looked for from
// the first.
constexpr size_t kMaxKwargsValues = 256;
constexpr size_t kMaxKwargsBytes = 64 << 10;

bool ReadRequired(FieldReader& fields, std::string_view name, std::string_view allowed,
                  std::string& value) {
  if (fields.Find(name) == nullptr) fields.FailMissing(name, allowed);
  fields.Read(name, value);
  return fields.ok();
}

// Passes over what libraries that speak with many services put beside an answer's own fields, and
// send back: what these say again, or what only its maker can read. Every prompt is cached.
void SkipAddedFields(FieldReader& fields) {
  for (std::string_view name : {"provider_specific_fields", "thinking_blocks", "reasoning_details",
                                "extra_content", "cache_control"}) {
    fields.Find(name);
  }
}

void ReadPart(FieldReader& part, ChatMessage& message) {
  part.Find("cache_control");  // every prompt is cached
  std::string type;
  std::string text;
  if (!ReadRequired(part, "type", "text", type)) return;
  if (type != "text") return part.FailValue("type", type, "text");
  if (!ReadRequired(part, "text", "a string", text)) return;
  message.content += text;
  message.part_sizes.push_back(text.size());
}

void ReadContent(FieldReader& message, const std::string& path, ChatMessage& read) {
  constexpr std::string_view kAllowed =
      "a string, or a non-empty list of {\"type\": \"text\"} parts";
  const OrderedJson* field = message.Find("content");
  if (field == nullptr) return message.FailMissing("content", kAllowed);
  if (field->is_string()) {
    read.content = field->get<std::string>();
    return;
  }
  if (!field->is_array() || field->empty()) return message.FailValue("content", *field, kAllowed);
  for (size_t i = 0; i < field->size() && message.ok(); ++i) {
    if (i > 0) read.content += '\n';
    FieldReader part((*field)[i], StrCat(path, "content[", i, "]."), message.unknown_fields());
    ReadPart(part, read);
    message.Fail(part.Finish());
  }
}

// Arguments are JSON text. Some clients send the object itself, and nothing for none.
void ReadArguments(FieldReader& function, std::string& arguments) {
  const OrderedJson* field = function.Find("arguments");
  if (field == nullptr) {
    arguments = "{}";
  } else if (field->is_string()) {
    arguments = field->get<std::string>();
  } else if (field->is_structured()) {
    arguments = DumpExact(*field);
  } else {
    function.FailValue("arguments", *field, "a string with a JSON object, or the object");
  }
}

// A call of a custom tool is one of the function that the model is shown.
void ReadCustomCall(FieldReader& call, const std::string& path, ToolCall& read) {
  const OrderedJson* custom = call.Find("custom");
  if (custom == nullptr) return call.FailMissing("custom", "an object with name and input");
  FieldReader fields(*custom, path + "custom.", call.unknown_fields());
  std::string input;
  ReadRequired(fields, "name", "a string", read.name);
  ReadRequired(fields, "input", "a string", input);
  read.arguments = TextArguments(input);
  call.Fail(fields.Finish());
}

void ReadToolCall(FieldReader& call, const std::string& path, ToolCall& read) {
  std::string type = "function";
  call.Read("type", type);
  if (type != "function" && type != "custom") {
    return call.FailValue("type", type, "function, custom");
  }
  ReadRequired(call, "id", "a string", read.id);
  SkipAddedFields(call);
  int32_t index = 0;  // put there by clients that join a stream's parts
  call.Read("index", index);
  if (type == "custom") return ReadCustomCall(call, path, read);
  const OrderedJson* function = call.Find("function");
  if (function == nullptr) return call.FailMissing("function", "an object with name and arguments");
  FieldReader fields(*function, path + "function.", call.unknown_fields());
  ReadRequired(fields, "name", "a string", read.name);
  ReadArguments(fields, read.arguments);
  fields.Find("provider_specific_fields");
  fields.Find("parsed_arguments");  // The openai client's parse adds it: what arguments say again.
  call.Fail(fields.Finish());
}

void ReadToolCalls(FieldReader& message, const std::string& path, std::vector<ToolCall>& calls) {
  const OrderedJson* field = message.Find("tool_calls");
  if (field == nullptr) return;
  if (!field->is_array()) return message.FailValue("tool_calls", *field, "a list of calls");
  for (size_t i = 0; i < field->size() && message.ok(); ++i) {
    const std::string of_call = StrCat(path, "tool_calls[", i, "].");
    FieldReader call((*field)[i], of_call, message.unknown_fields());
    ReadToolCall(call, of_call, calls.emplace_back());
    message.Fail(call.Finish());
  }
}

// Reads what an answer has beside its content, which comes back in the next request.
void ReadAnswerFields(FieldReader& message, const std::string& path, ChatMessage& read) {
  ReadToolCalls(message, path, read.tool_calls);
  message.Read("reasoning_content", read.reasoning);
  message.Read("reasoning", read.reasoning);
  message.Find("parsed");  // The openai client's parse adds it: what content says again.
  message.Refuse("annotations", OrderedJson::array({OrderedJson::array()}));
  for (std::string_view name : {"audio", "function_call", "refusal"}) {
    message.Refuse(name, OrderedJson::array());
  }
}

ChatMessage ReadMessage(FieldReader& message, const std::string& path) {
  ChatMessage read;
  ReadRequired(message, "role", kRoles, read.role);
  if (read.role == "assistant") ReadAnswerFields(message, path, read);
  // A turn with calls, or of reasoning alone, may have no content.
  const bool needed = read.tool_calls.empty() && read.reasoning.empty();
  if (needed || message.Find("content") != nullptr) ReadContent(message, path, read);
  message.Read("name", read.name);
  SkipAddedFields(message);
  if (read.role == "tool") message.Read("tool_call_id", read.tool_call_id);
  return read;
}

bool ReadMessages(FieldReader& fields, std::vector<ChatMessage>& messages) {
  const OrderedJson* list = fields.Find("messages");
  constexpr std::string_view kAllowed = "a non-empty list of messages";
  if (list == nullptr) {
    fields.FailMissing("messages", kAllowed);
    return false;
  }
  if (!list->is_array() || list->empty()) {
    fields.FailValue("messages", *list, kAllowed);
    return false;
  }
  messages.reserve(list->size());
  for (const OrderedJson& item : *list) {
    const std::string path = StrCat("messages[", messages.size(), "].");
    FieldReader message(item, path, fields.unknown_fields());
    messages.push_back(ReadMessage(message, path));
    fields.Fail(message.Finish());
    if (!fields.ok()) return false;
  }
  return true;
}

// Those inside of the value, at any depth.
size_t CountValues(const OrderedJson& value) {
  if (!value.is_structured()) return 0;
  size_t count = value.size();
  for (const OrderedJson& inner : value) count += CountValues(inner);
  return count;
}

// Variables of the template's own. What a field of the request sets, or would set, is not one.
void ReadTemplateKwargs(FieldReader& fields, std::string& kwargs) {
  constexpr std::string_view kName = "chat_template_kwargs";
  constexpr std::string_view kTaken[] = {
      "messages",  "add_generation_prompt", "tools",    "continue_final_message",
      "documents", "chat_template",         "tokenize", "conversation"};
  const OrderedJson* object = fields.Find(kName);
  if (object == nullptr) return;
  if (!object->is_object()) return fields.FailValue(kName, *object, "an object");
  for (const OrderedMember* member : SortedMembers(*object)) {
    const auto& [key, value] = *member;
    if (std::count(std::begin(kTaken), std::end(kTaken), key) > 0) {
      return fields.FailValue(StrCat(kName, ".", key), value, "variables of the template's own");
    }
  }
  const auto check = [&](size_t count, size_t most, std::string_view what) {
    if (count <= most) return;
    fields.Fail(kName, "invalid_value",
                StrCat(kName, " has ", count, " ", what, "; allowed: at most ", most));
  };
  check(CountValues(*object), kMaxKwargsValues, "values");
  kwargs = DumpExact(*object);
  check(kwargs.size(), kMaxKwargsBytes, "bytes");
}

}  // namespace

std::optional<Chat> ReadChat(FieldReader& fields) {
  Chat chat;
  if (!ReadMessages(fields, chat.messages)) return std::nullopt;
  fields.Read("add_generation_prompt", chat.add_generation_prompt);
  fields.Read("continue_final_message", chat.continue_final_message);
  if (chat.add_generation_prompt && chat.continue_final_message) {
    fields.FailValue("continue_final_message", true, "only when add_generation_prompt is false");
  }
  ReadTemplateKwargs(fields, chat.template_kwargs);
  return chat;
}

void ReadPrediction(FieldReader& fields, std::string& prediction) {
  const OrderedJson* field = fields.Find("prediction");
  if (field == nullptr) return;
  FieldReader reader(*field, "prediction.", fields.unknown_fields());
  std::string type;
  ReadRequired(reader, "type", "content", type);
  if (type != "content") reader.FailValue("type", type, "content");
  ChatMessage message;
  ReadContent(reader, "prediction.", message);
  fields.Fail(reader.Finish());
  prediction = std::move(message.content);
}

}  // namespace millrace
