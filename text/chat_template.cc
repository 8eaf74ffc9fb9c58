#include "text/chat_template.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/json.h"
#include "text/jinja/parser.h"
#include "text/jinja/text.h"

namespace millrace {
namespace {

constexpr std::string_view kComponent = "chat template";

// The mark that transformers puts after the content to be continued, to find its end in the text.
constexpr std::string_view kEndMark = "CONTINUE_FINAL_MESSAGE_TAG ";

// The content's string, or the last text of its parts; null if there is none.
template <typename Json>
std::string* FinalText(Json& messages) {
  if (!messages.is_array() || messages.empty() || !messages.back().is_object()) return nullptr;
  const auto content = messages.back().find("content");
  if (content == messages.back().end()) return nullptr;
  if (content->is_string()) return content->template get_ptr<std::string*>();
  if (!content->is_array()) return nullptr;
  for (auto part = content->rbegin(); part != content->rend(); ++part) {
    const auto text = part->is_object() ? part->find("text") : part->end();
    if (text != part->end()) return text->template get_ptr<std::string*>();
  }
  return nullptr;
}

// The text up to the mark. White space after the content is cut too where the template trims it,
// which it does if the mark's own is gone.
absl::StatusOr<std::string> CutAtMark(std::string text, std::string_view content) {
  const std::string_view mark = jinja::StripSpace(kEndMark, jinja::Side::kRight);
  const size_t at = text.rfind(mark);
  const std::string_view trimmed = jinja::StripSpace(content, jinja::Side::kBoth);
  if (at == std::string::npos || jinja::FindText(text, trimmed) == std::string::npos) {
    return absl::InvalidArgumentError(
        "the final message cannot be continued, since the template does not write its content");
  }
  const bool trims = !std::string_view(text).substr(at).starts_with(kEndMark);
  text.resize(at);
  return trims ? std::string(jinja::StripSpace(text, jinja::Side::kRight)) : text;
}

}  // namespace

ChatTemplate::ChatTemplate(jinja::Block block, SpecialTokenTexts tokens, TemplateLimits limits)
    : block_(std::make_shared<const jinja::Block>(std::move(block))),
      tokens_(std::move(tokens)),
      limits_(limits) {}

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(std::string_view source, SpecialTokenTexts tokens,
                                                 TemplateLimits limits) {
  absl::StatusOr<jinja::Block> block = jinja::Parse(source, limits);
  if (!block.ok()) return Annotate(block.status(), kComponent);
  return ChatTemplate(*std::move(block), std::move(tokens), limits);
}

template <typename Json>
absl::StatusOr<std::string> ChatTemplate::Render(const Json& messages, const Json& extra,
                                                 const ChatTemplateOptions& options) const {
  jinja::Budget budget(limits_, *options.clock, options.deadline, options.cancelled);
  // transformers passes these whether they are given or not.
  jinja::Variables variables = {{"add_generation_prompt", options.add_generation_prompt},
                                {"documents", jinja::None()},
                                {"tools", jinja::None()}};
  const std::pair<const char*, const std::optional<std::string>*> texts[] = {
      {"bos_token", &tokens_.bos},
      {"eos_token", &tokens_.eos},
      {"unk_token", &tokens_.unk},
      {"pad_token", &tokens_.pad}};
  for (const auto& [name, text] : texts) {
    if (text->has_value()) variables[name] = **text;
  }
  const auto add = [&](const std::string& name, const Json& json) -> absl::Status {
    auto value = jinja::FromJson(budget, json);
    if (!value.ok()) return Annotate(value.status(), StrCat(kComponent, ": ", name));
    variables[name] = *std::move(value);
    return absl::OkStatus();
  };
  std::string content;  // The content to be continued.
  if (options.continue_final_message) {
    Json marked = messages;
    std::string* text = FinalText(marked);
    if (text == nullptr) {
      return absl::InvalidArgumentError(
          StrCat(kComponent, ": the final message has no content to continue"));
    }
    content = *text;
    *text += kEndMark;
    MILLRACE_RETURN_IF_ERROR(add("messages", marked));
  } else {
    MILLRACE_RETURN_IF_ERROR(add("messages", messages));
  }
  for (const auto& [name, value] : extra.items()) MILLRACE_RETURN_IF_ERROR(add(name, value));
  auto text =
      jinja::Interpreter(std::move(variables), {budget, options.now, options.zone}).Render(*block_);
  if (text.ok() && options.continue_final_message) text = CutAtMark(*std::move(text), content);
  if (!text.ok()) return Annotate(text.status(), kComponent);
  return text;
}

template <typename Json>
absl::StatusOr<std::string> FlattenContent(std::string_view field, const Json& content) {
  if (content.is_null()) return std::string();
  if (content.is_string()) return content.template get<std::string>();
  if (!content.is_array()) {
    return absl::InvalidArgumentError(StrCat(field, " is ", content.type_name(),
                                             ", it must be a string or a list of text parts"));
  }
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const Json& part = content[i];
    const std::string name = StrCat(field, "[", i, "]");
    const auto type = part.is_object() ? part.find("type") : part.end();
    if (type == part.end() || !type->is_string()) {
      return absl::InvalidArgumentError(StrCat(name, " must be an object with a string 'type'"));
    }
    if (*type != "text") {
      return absl::InvalidArgumentError(
          StrCat(name, ".type is '", type->template get_ref<const std::string&>().substr(0, 100),
                 "', only 'text' is supported"));
    }
    const auto part_text = part.find("text");
    if (part_text == part.end() || !part_text->is_string()) {
      return absl::InvalidArgumentError(StrCat(name, ".text must be a string"));
    }
    if (i > 0) text += '\n';
    text += part_text->template get_ref<const std::string&>();
  }
  return text;
}

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;
template absl::StatusOr<std::string> ChatTemplate::Render(const Json&, const Json&,
                                                          const ChatTemplateOptions&) const;
template absl::StatusOr<std::string> ChatTemplate::Render(const OrderedJson&, const OrderedJson&,
                                                          const ChatTemplateOptions&) const;
template absl::StatusOr<std::string> FlattenContent(std::string_view, const Json&);
template absl::StatusOr<std::string> FlattenContent(std::string_view, const OrderedJson&);

}  // namespace millrace
