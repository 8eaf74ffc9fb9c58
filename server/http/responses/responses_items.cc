#include "server/http/responses/responses_items.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/strings.h"
#include "formats/json/exact_json.h"
#include "server/http/openai/custom_tools.h"

namespace millrace {
namespace {

// Fields that items of an answer have, which come back in the next request.
void SkipItemFields(FieldReader& item) {
  std::string text;
  item.Read("id", text);
  item.Read("status", text);
}

// A string, or a list of parts whose texts are joined by line feeds.
void ReadItemContent(FieldReader& fields, std::string_view name, const std::string& path,
                     std::string_view types, ChatMessage& read) {
  const OrderedJson* field = fields.Find(name);
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
    part.Refuse("annotations", OrderedJson::array({OrderedJson::array()}));
    part.Refuse("logprobs", OrderedJson::array({OrderedJson::array()}));
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
  item.Find("caller");            // The model itself: nothing here runs programs that call.
  std::string group;              // of tools; the model knows them by their names alone
  item.Read("namespace", group);
  AssistantTurn(messages, /*after_text=*/true).tool_calls.push_back(std::move(call));
}

void ReadReasoningItem(FieldReader& item, const std::string& path,
                       std::vector<ChatMessage>& messages) {
  ChatMessage read;
  std::string sealed;  // which only its maker can read
  item.Read("encrypted_content", sealed);
  const OrderedJson* summary = item.Find("summary");
  if (item.Find("content") != nullptr) {
    ReadItemContent(item, "content", path, "reasoning_text, text", read);
  } else if (summary != nullptr) {
    ReadItemContent(item, "summary", path, "summary_text", read);
  }
  if (read.content.empty()) return;
  std::string& reasoning = AssistantTurn(messages, /*after_text=*/false).reasoning;
  reasoning += StrCat(reasoning.empty() ? "" : "\n", read.content);
}

// A call of a tool that takes a text: the model sees the function that it is shown in its place.
void ReadCustomCallItem(FieldReader& item, std::vector<ChatMessage>& messages) {
  ToolCall call;
  ReadItemField(item, "call_id", "a string", call.id);
  ReadItemField(item, "name", "a string", call.name);
  std::string group;
  item.Read("namespace", group);
  item.Find("caller");
  std::string input;
  ReadItemField(item, "input", "a string", input);
  call.arguments = TextArguments(input);
  AssistantTurn(messages, /*after_text=*/true).tool_calls.push_back(std::move(call));
}

// A call of the shell: the model sees one of a function, whose arguments are the action.
void ReadShellCallItem(FieldReader& item, std::vector<ChatMessage>& messages) {
  ToolCall call{.name = "local_shell"};
  ReadItemField(item, "call_id", "a string", call.id);
  const OrderedJson* action = item.Find("action");
  if (action == nullptr) item.FailMissing("action", "what the call was made with");
  if (!item.ok()) return;
  call.arguments = DumpExact(action->is_object() ? *action : OrderedJson{{"action", *action}});
  AssistantTurn(messages, /*after_text=*/true).tool_calls.push_back(std::move(call));
}

void ReadCallOutputItem(FieldReader& item, const std::string& path,
                        std::vector<ChatMessage>& messages) {
  ChatMessage result{.role = "tool"};
  ReadItemField(item, "call_id", "a string", result.tool_call_id);
  item.Find("caller");
  ReadItemContent(item, "output", path, "input_text, output_text, text", result);
  messages.push_back(std::move(result));
}

void ReadItem(FieldReader& item, const std::string& path, std::vector<ChatMessage>& messages) {
  std::string type = "message";
  item.Read("type", type);
  SkipItemFields(item);
  if (type == "message") {
    ReadMessageItem(item, path, messages);
  } else if (type == "function_call") {
    ReadCallItem(item, messages);
  } else if (type == "custom_tool_call") {
    ReadCustomCallItem(item, messages);
  } else if (type == "local_shell_call") {
    ReadShellCallItem(item, messages);
  } else if (type == "function_call_output" || type == "custom_tool_call_output" ||
             type == "local_shell_call_output") {
    ReadCallOutputItem(item, path, messages);
  } else if (type == "web_search_call") {
    item.Find("action");  // What was found stands in the answer that followed.
  } else if (type == "reasoning") {
    ReadReasoningItem(item, path, messages);
  } else {
    item.FailValue("type", type,
                   "message, reasoning, web_search_call, and function_call, custom_tool_call and "
                   "local_shell_call with their outputs (function_call_output and so on)");
  }
}

}  // namespace

bool ReadItemField(FieldReader& fields, std::string_view name, std::string_view allowed,
                   std::string& value) {
  if (fields.Find(name) == nullptr) fields.FailMissing(name, allowed);
  fields.Read(name, value);
  return fields.ok();
}

void ReadInput(FieldReader& fields, std::vector<ChatMessage>& messages) {
  const OrderedJson* input = fields.Find("input");
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
  if (messages.empty()) {
    fields.Fail("input", "invalid_value",
                "input has only items that are passed over; allowed: one that says something");
  }
}

}  // namespace millrace
