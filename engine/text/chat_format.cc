#include "engine/text/chat_format.h"

#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "engine/text/template_messages.h"
#include "engine/text/template_probe.h"
#include "text/tools/json_call.h"

namespace millrace {
namespace {

constexpr std::string_view kProbeText = "PROBETEXT";
constexpr std::string_view kProbeTool = "probe_tool";
OrderedJson ParseOrNull(const std::string& text) {
  return ParseOrdered(text, kCallJson).value_or(OrderedJson());
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
  chat.tools = tools.dump();
  auto variables = OrderedJson::object();
  AddToolsVariables(chat.tools, format.traits, &variables);
  return chat_template.Render(TemplateMessages(chat, format.traits, format.output), variables,
                              options);
}

// Takes from a call that the template renders, or else from the special tokens, how calls are
// written, if the template's text does not show it or leaves it open.
void Refine(const ChatTemplate& chat_template, std::string_view tokens, ChatFormat* format) {
  const ToolFormat* tools = format->output.tools();
  const bool glm = tools != nullptr && tools->name == "glm45";
  if (tools != nullptr && !glm) return;
  if (!format->traits.calls.text_calls) {
    const absl::StatusOr<std::string> call = Probe(chat_template, *format, /*call=*/true);
    if (glm) {
      const std::string named = StrCat(tools->call_begins, kProbeTool, tools->xml.key_open);
      if (call.ok() && call->find(named) != call->npos) {
        format->output.SetTools(*ToolFormatNamed("glm47"));
      }
      return;
    }
    const absl::StatusOr<std::string> text = Probe(chat_template, *format, /*call=*/false);
    if (call.ok() && text.ok()) {
      if (auto derived = DeriveToolFormat(*text, kProbeText, *call, kProbeTool)) {
        return format->output.SetTools(*std::move(derived));
      }
    }
  }
  if (auto shown = ToolFormatShown(tokens); shown && !glm) format->output.SetTools(*shown);
}

}  // namespace

absl::StatusOr<ChatFormat> MakeChatFormat(std::string_view source,
                                          const absl::StatusOr<ChatTemplate>& chat_template,
                                          const ParserNames& parsers, std::string_view tokens) {
  ChatFormat format;
  MILLRACE_ASSIGN_OR_RETURN(format.output,
                            OutputFormat::Choose(source, parsers.tools, parsers.reasoning));
  const auto has = [&](std::string_view text) { return source.find(text) != source.npos; };
  format.takes_effort = has("reasoning_effort");
  format.takes_thinking = has("enable_thinking");
  if (!chat_template.ok()) return format;
  format.traits = ProbeTemplate(source, *chat_template, format.output);
  const TemplateTraits& traits = format.traits;
  if (parsers.tools != "auto") return format;
  const bool no_tools = traits.tools.place == ToolsTraits::Place::kText && traits.calls.text_calls;
  if (no_tools) {
    // The model is asked for calls in the form that most have seen.
    format.output.SetTools(*OutputFormat::Choose("", "hermes", "none")->tools());
    return format;
  }
  Refine(*chat_template, tokens, &format);
  return format;
}

absl::Status AddTemplateVariables(const Chat& chat, const ChatFormat& format,
                                  const TemplateTraits& traits, OrderedJson* variables) {
  if (!chat.tools.empty()) {
    if (format.output.tools() == nullptr && chat.parse_tools) {
      return absl::InvalidArgumentError(
          "tools has tools, but how this model writes calls is not known; allowed: none, unless "
          "--tool-call-parser says it");
    }
  }
  AddToolsVariables(chat.tools, traits, variables);
  if (chat.reasoning_effort.empty()) return absl::OkStatus();
  if (chat.reasoning_effort == "none" && !format.takes_effort) {
    if (format.takes_thinking && !variables->contains("enable_thinking")) {
      (*variables)["enable_thinking"] = false;
    }
    return absl::OkStatus();
  }
  // A hint, which templates may not know.
  if (format.takes_effort) (*variables)["reasoning_effort"] = chat.reasoning_effort;
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
