#include "engine/chat_format.h"

#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "text/tools/json_call.h"

namespace millrace {
namespace {

constexpr std::string_view kProbeText = "PROBETEXT";
constexpr std::string_view kProbeTool = "probe_tool";
// Introduces the tools to a model whose template has no place for them. The form of a call is
// Hermes', which most models have seen.
constexpr std::string_view kToolsIntro =
    "You can call functions. Each line between <tools> and </tools> describes one as a JSON "
    "object:\n<tools>\n";
constexpr std::string_view kToolsOutro =
    "</tools>\nTo call a function, answer with its name and its arguments in a JSON object, "
    "between "
    "tags:\n<tool_call>\n{\"name\": \"NAME\", \"arguments\": {ARGUMENTS}}\n</tool_call>";

OrderedJson ParseOrNull(const std::string& text) {
  return ParseOrdered(text, kCallJson).value_or(OrderedJson());
}

OrderedJson CallJson(const ToolCall& call, bool text_arguments) {
  OrderedJson arguments = text_arguments ? OrderedJson() : ParseOrNull(call.arguments);
  if (!arguments.is_object()) arguments = call.arguments;
  return {{"id", call.id},
          {"type", "function"},
          {"function", {{"name", call.name}, {"arguments", std::move(arguments)}}}};
}

OrderedJson MessageJson(const ChatMessage& message, const ChatFormat& format) {
  OrderedJson entry = {{"role", message.role}, {"content", message.content}};
  if (!message.name.empty()) entry["name"] = message.name;
  if (!message.tool_call_id.empty()) entry["tool_call_id"] = message.tool_call_id;
  if (!message.reasoning.empty()) {
    // Templates do not agree on the name.
    for (const char* name : {"reasoning_content", "reasoning", "thinking"}) {
      entry[name] = message.reasoning;
    }
  }
  if (!message.tool_calls.empty()) {
    OrderedJson calls = OrderedJson::array();
    for (const ToolCall& call : message.tool_calls) {
      calls.push_back(CallJson(call, format.text_arguments));
    }
    entry["tool_calls"] = std::move(calls);
  }
  return entry;
}

// Writes a turn with calls, or their result, as the text that kToolsOutro describes.
void AppendWithoutTools(const ChatMessage& message, OrderedJson* messages) {
  std::string content = message.content;
  std::string role = message.role;
  for (const ToolCall& call : message.tool_calls) {
    if (!content.empty()) content += '\n';
    content += StrCat("<tool_call>\n{\"name\": ", OrderedJson(call.name).dump(),
                      ", \"arguments\": ", call.arguments, "}\n</tool_call>");
  }
  if (role == "tool") {
    content = StrCat("<tool_response>\n", content, "\n</tool_response>");
    // Results of calls that were made together are one turn.
    if (!messages->empty() && messages->back()["role"] == "user" &&
        messages->back()["content"].get_ref<const std::string&>().ends_with("</tool_response>")) {
      messages->back()["content"].get_ref<std::string&>() += "\n" + content;
      return;
    }
    role = "user";
  }
  OrderedJson entry = {{"role", std::move(role)}, {"content", std::move(content)}};
  if (!message.name.empty() && message.role != "tool") entry["name"] = message.name;
  messages->push_back(std::move(entry));
}

void AddToolsText(const std::string& tools, OrderedJson* messages) {
  std::string text(kToolsIntro);
  for (const OrderedJson& tool : ParseOrNull(tools)) text += tool.dump() + "\n";
  text += kToolsOutro;
  if (!messages->empty() && messages->front()["role"] == "system") {
    messages->front()["content"].get_ref<std::string&>() += "\n\n" + text;
    return;
  }
  messages->insert(messages->begin(),
                   OrderedJson{{"role", "system"}, {"content", std::move(text)}});
}

// Renders a turn of the assistant after one of the user.
absl::StatusOr<std::string> Probe(const ChatTemplate& chat_template, const ChatFormat& format,
                                  bool call) {
  Chat chat;
  chat.messages = {{.role = "user", .content = "q"}, {.role = "assistant", .content = ""}};
  if (call) {
    chat.messages[1].tool_calls = {
        {.id = "call12345", .name = std::string(kProbeTool), .arguments = R"({"a": "b"})"}};
  } else {
    chat.messages[1].content = kProbeText;
  }
  const OrderedJson tools = {
      {{"type", "function"},
       {"function",
        {{"name", kProbeTool}, {"description", "d"}, {"parameters", {{"type", "object"}}}}}}};
  ChatTemplateOptions options;
  options.add_generation_prompt = false;
  options.deadline = options.clock->Now() + std::chrono::seconds(2);
  return chat_template.Render(TemplateMessages(chat, format), OrderedJson{{"tools", tools}},
                              options);
}

}  // namespace

absl::StatusOr<ChatFormat> MakeChatFormat(std::string_view source,
                                          const absl::StatusOr<ChatTemplate>& chat_template,
                                          const ParserNames& parsers) {
  ChatFormat format;
  MILLRACE_ASSIGN_OR_RETURN(format.output,
                            OutputFormat::Choose(source, parsers.tools, parsers.reasoning));
  const auto has = [&](std::string_view text) { return source.find(text) != source.npos; };
  format.writes_tools = has("tools");
  format.takes_effort = has("reasoning_effort");
  format.takes_thinking = has("enable_thinking");
  if (!chat_template.ok()) return format;
  if (!format.writes_tools) {
    if (parsers.tools == "auto") {
      format.output.SetTools(*OutputFormat::Choose("", "hermes", "none")->tools());
    }
    return format;
  }
  absl::StatusOr<std::string> call = Probe(*chat_template, format, /*call=*/true);
  if (!call.ok()) {
    format.text_arguments = true;
    call = Probe(*chat_template, format, /*call=*/true);
    format.text_arguments = call.ok();
  }
  if (format.output.tools() != nullptr || parsers.tools != "auto") return format;
  const absl::StatusOr<std::string> text = Probe(*chat_template, format, /*call=*/false);
  if (!call.ok() || !text.ok()) return format;
  if (auto derived = DeriveToolFormat(*text, kProbeText, *call, kProbeTool)) {
    format.output.SetTools(*std::move(derived));
  }
  return format;
}

OrderedJson TemplateMessages(const Chat& chat, const ChatFormat& format) {
  OrderedJson messages = OrderedJson::array();
  for (const ChatMessage& message : chat.messages) {
    if (format.writes_tools) {
      messages.push_back(MessageJson(message, format));
    } else {
      AppendWithoutTools(message, &messages);
    }
  }
  if (!chat.tools.empty() && !format.writes_tools) AddToolsText(chat.tools, &messages);
  return messages;
}

absl::Status AddTemplateVariables(const Chat& chat, const ChatFormat& format,
                                  OrderedJson* variables) {
  if (!chat.tools.empty()) {
    if (format.output.tools() == nullptr && chat.parse_tools) {
      return absl::InvalidArgumentError(
          "tools has tools, but how this model writes calls is not known; allowed: none, unless "
          "--tool-call-parser says it");
    }
    if (format.writes_tools) (*variables)["tools"] = ParseOrNull(chat.tools);
  }
  if (chat.reasoning_effort.empty()) return absl::OkStatus();
  if (chat.reasoning_effort == "none" && !format.takes_effort) {
    if (format.takes_thinking && !variables->contains("enable_thinking")) {
      (*variables)["enable_thinking"] = false;
    }
    return absl::OkStatus();
  }
  if (!format.takes_effort) {
    return absl::InvalidArgumentError(
        StrCat("reasoning_effort is \"", chat.reasoning_effort,
               "\"; allowed: none, since the model's chat template does not read it"));
  }
  (*variables)["reasoning_effort"] = chat.reasoning_effort;
  return absl::OkStatus();
}

std::vector<ToolSignature> ToolSignatures(const std::string& tools) {
  std::vector<ToolSignature> signatures;
  for (const OrderedJson& tool : ParseOrNull(tools)) {
    const auto function = tool.find("function");
    if (function == tool.end() || !function->is_object()) continue;
    const auto name = function->find("name");
    if (name == function->end() || !name->is_string()) continue;
    const auto parameters = function->find("parameters");
    signatures.push_back({name->get<std::string>(),
                          parameters == function->end() ? std::string() : parameters->dump()});
  }
  return signatures;
}

}  // namespace millrace
