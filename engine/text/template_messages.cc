#include "engine/text/template_messages.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/strings.h"
#include "engine/text/call_text.h"
#include "engine/text/call_turns.h"
#include "formats/json/exact_json.h"
#include "text/tools/json_call.h"

namespace millrace {
namespace {

using Messages = std::vector<ChatMessage>;
using System = MessageTraits::System;

OrderedJson ParseOrNull(const std::string& text) {
  return ParseExact(text, kCallJson).value_or(OrderedJson());
}

void PutReasoningInContent(const OutputFormat& output, Messages* messages) {
  const ReasoningFormat* format = output.reasoning();
  if (format == nullptr || format->harmony) return;
  for (size_t i = LastUser(*messages); i < messages->size(); ++i) {
    ChatMessage& message = (*messages)[i];
    if (message.reasoning.empty()) continue;
    const std::string content = std::move(message.content);
    const std::string_view line = format->think.open.starts_with('<') ? "\n" : "";
    message.content =
        StrCat(format->think.open, line, message.reasoning, line, format->think.close, line, line);
    message.reasoning.clear();
    AppendContent(&message, content, "");
  }
}

// Introduces the tools to a model whose template has no place for them.
void AddToolsText(const std::string& tools, const ToolFormat& format, Messages* messages) {
  std::string text =
      "You can call functions. Each line between <tools> and </tools> describes one as a JSON "
      "object:\n<tools>\n";
  for (const OrderedJson& tool : ParseOrNull(tools)) text += DumpExact(tool) + "\n";
  const bool elements = format.kind == ToolFormat::Kind::kXml;
  const bool literals = format.marked.arguments != ArgumentForm::kJson;
  const ToolCall example = {
      .name = "NAME",
      .arguments = elements || literals ? R"({"ARGUMENT":"VALUE"})" : "{ARGUMENTS}"};
  text += StrCat("</tools>\nTo call a function, answer with its name and its arguments in ",
                 elements   ? "elements, one for each argument:\n"
                 : literals ? "this form:\n"
                            : "a JSON object, between tags:\n",
                 CallsText(format, {example}, 0));
  if (messages->empty() || messages->front().role != "system") {
    messages->insert(messages->begin(), ChatMessage{.role = "system"});
  }
  AppendContent(&messages->front(), text, "\n\n");
}

void PlaceSystem(System place, Messages* messages) {
  const auto is_system = [](const ChatMessage& message) { return message.role == "system"; };
  const auto count = std::count_if(messages->begin(), messages->end(), is_system);
  if (count == 0 || place == System::kAnywhere) return;
  if (place == System::kFirst && count == 1 && is_system(messages->front())) return;
  ChatMessage all{.role = "system"};
  for (const ChatMessage& message : *messages) {
    if (is_system(message)) AppendContent(&all, message.content, "\n\n");
  }
  std::erase_if(*messages, is_system);
  if (place == System::kFirst) {
    messages->insert(messages->begin(), std::move(all));
    return;
  }
  if (messages->empty() || messages->front().role != "user") {
    messages->insert(messages->begin(), ChatMessage{.role = "user"});
  }
  ChatMessage& first = messages->front();
  const std::string content = std::exchange(first.content, std::move(all.content));
  AppendContent(&first, content, "\n\n");
}

// Puts an empty turn of the user before a turn of the assistant that begins the conversation.
void BeginWithUser(Messages* messages) {
  const auto first = std::find_if(messages->begin(), messages->end(),
                                  [](const ChatMessage& one) { return one.role != "system"; });
  if (first != messages->end() && first->role == "assistant") {
    messages->insert(first, ChatMessage{.role = "user"});
  }
}

void JoinTurns(Messages* messages) {
  Messages joined;
  for (ChatMessage& message : *messages) {
    const bool joins = !joined.empty() && joined.back().role == message.role &&
                       (message.role == "user" || message.role == "assistant") &&
                       joined.back().tool_calls.empty() && message.tool_calls.empty();
    if (!joins) {
      joined.push_back(std::move(message));
      continue;
    }
    AppendContent(&joined.back(), message.content, "\n\n");
    if (!message.reasoning.empty()) joined.back().reasoning = std::move(message.reasoning);
  }
  *messages = std::move(joined);
}

OrderedJson ContentJson(const ChatMessage& message, const MessageTraits& traits) {
  if (message.content.empty() && !message.tool_calls.empty() && traits.null_content) return nullptr;
  const auto& roles = traits.parts_roles;
  const bool parts =
      message.part_sizes.size() > 1 &&
      (traits.parts_only || std::find(roles.begin(), roles.end(), message.role) != roles.end());
  if (!parts && !traits.parts_only) return message.content;
  OrderedJson list = OrderedJson::array();
  size_t begin = 0;
  for (const size_t size : parts ? message.part_sizes : std::vector{message.content.size()}) {
    list.push_back({{"type", "text"}, {"text", message.content.substr(begin, size)}});
    begin += size + 1;
  }
  return list;
}

OrderedJson CallJson(const ToolCall& call, bool text_arguments) {
  OrderedJson arguments = text_arguments ? OrderedJson() : ParseOrNull(call.arguments);
  if (!arguments.is_object()) arguments = call.arguments;
  return {{"id", call.id},
          {"type", "function"},
          {"function", {{"name", call.name}, {"arguments", std::move(arguments)}}}};
}

OrderedJson MessageJson(const ChatMessage& message, const MessageTraits& traits) {
  OrderedJson entry = {{"role", message.role}, {"content", ContentJson(message, traits)}};
  if (!message.name.empty()) entry["name"] = message.name;
  if (!message.tool_call_id.empty()) entry["tool_call_id"] = message.tool_call_id;
  if (!message.reasoning.empty()) {
    // Templates do not agree on the name.
    for (const char* name : {"reasoning_content", "reasoning", "thinking"}) {
      entry[name] = message.reasoning;
    }
  }
  if (message.tool_calls.empty()) return entry;
  OrderedJson calls = OrderedJson::array();
  for (const ToolCall& call : message.tool_calls) {
    calls.push_back(CallJson(call, traits.text_arguments));
  }
  entry["tool_calls"] = std::move(calls);
  return entry;
}

// Returns the tools as the template takes them.
OrderedJson ToolsVariable(const std::string& tools, const ToolsTraits& traits) {
  OrderedJson list = tools.empty() ? OrderedJson::array() : ParseOrNull(tools);
  for (OrderedJson& tool : list) {
    OrderedJson& function = tool["function"];
    if (traits.completes) {
      if (!function.contains("description")) function["description"] = "";
      if (!function.contains("parameters")) {
        function["parameters"] = {{"type", "object"}, {"properties", OrderedJson::object()}};
      }
    }
    if (traits.functions) tool = OrderedJson(function);
  }
  if (traits.as_text) return DumpExact(list);
  return list;
}

}  // namespace

bool UsesTools(const Chat& chat) {
  return !chat.tools.empty() ||
         std::any_of(chat.messages.begin(), chat.messages.end(), [](const ChatMessage& message) {
           return message.role == "tool" || !message.tool_calls.empty();
         });
}

OrderedJson TemplateMessages(const Chat& chat, const TemplateTraits& all_traits,
                             const OutputFormat& output) {
  static const ToolFormat kHermes = *OutputFormat::Choose("", "hermes", "none")->tools();
  const MessageTraits& traits = UsesTools(chat) ? all_traits.calls : all_traits.plain;
  const ToolFormat& calls = output.tools() == nullptr ? kHermes : *output.tools();
  Messages messages = chat.messages;
  for (ChatMessage& message : messages) {
    if (message.role == "developer" && !traits.developer) message.role = "system";
  }
  CompleteArguments(traits, &messages);
  NameCalls(traits, &messages);
  if (traits.reasoning_in_content) PutReasoningInContent(output, &messages);
  PlaceCalls(traits, calls, &messages);
  const ToolsTraits::Place place = all_traits.tools.place;
  if (!chat.tools.empty() && place == ToolsTraits::Place::kText) {
    AddToolsText(chat.tools, calls, &messages);
  }
  PlaceSystem(traits.system, &messages);
  if (traits.user_first) BeginWithUser(&messages);
  if (traits.joins_turns) JoinTurns(&messages);
  OrderedJson written = OrderedJson::array();
  for (const ChatMessage& message : messages) written.push_back(MessageJson(message, traits));
  if (!chat.tools.empty() && place == ToolsTraits::Place::kSystemMember) {
    if (written.empty() || written[0]["role"] != "system") {
      written.insert(written.begin(), MessageJson({.role = "system"}, traits));
    }
    written[0]["tools"] = ToolsVariable(chat.tools, all_traits.tools);
  }
  return written;
}

void AddToolsVariables(const std::string& tools, const TemplateTraits& traits,
                       OrderedJson* variables) {
  const bool in_variable = traits.tools.place == ToolsTraits::Place::kVariable;
  const std::string name = in_variable ? traits.tools.variable : "tools";
  if (in_variable && !tools.empty()) {
    (*variables)[name] = ToolsVariable(tools, traits.tools);
  } else if (traits.empty_tools && !variables->contains(name)) {
    (*variables)[name] = ToolsVariable("", traits.tools);
  }
  if (traits.needs_date && !variables->contains("datetime")) {
    (*variables)["datetime"] = absl::FormatTime("%d %B %Y", absl::Now(), absl::UTCTimeZone());
  }
}

}  // namespace millrace
