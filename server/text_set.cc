#include "server/text_set.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/time/clock.h"
#include "base/status.h"
#include "formats/gguf.h"
#include "formats/tokenizer_config.h"
#include "server/text/bpe_tokenizer.h"

namespace millrace {
namespace {

// What one rendering may take; a template comes with the model, and may be a bad one.
constexpr Duration kRenderTime = std::chrono::seconds(2);

constexpr std::string_view kChatMl =
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

std::optional<std::string> TokenText(const Tokenizer& tokenizer, std::optional<Token> token) {
  if (!token.has_value()) return std::nullopt;
  return std::string(tokenizer.TokenBytes(*token));
}

}  // namespace

absl::StatusOr<std::unique_ptr<const TextSet>> TextSet::Load(const std::string& path) {
  MILLRACE_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(path));
  MILLRACE_ASSIGN_OR_RETURN(const TokenizerConfig config, ReadTokenizerConfig(file));
  MILLRACE_ASSIGN_OR_RETURN(std::unique_ptr<const Tokenizer> tokenizer,
                            BpeTokenizer::Create(config));
  std::optional<ChatTemplate> chat_template;
  if (!config.chat_template.empty()) {
    const SpecialTokenTexts texts = {.bos = TokenText(*tokenizer, config.bos),
                                     .eos = TokenText(*tokenizer, config.eos),
                                     .pad = TokenText(*tokenizer, config.pad)};
    MILLRACE_ASSIGN_OR_RETURN(chat_template, ChatTemplate::Parse(config.chat_template, texts));
  }
  return std::make_unique<const TextSet>(std::move(tokenizer), std::move(chat_template));
}

absl::StatusOr<std::unique_ptr<const TextSet>> TextSet::Bytes() {
  MILLRACE_ASSIGN_OR_RETURN(ChatTemplate chat_template, ChatTemplate::Parse(kChatMl, {}));
  return std::make_unique<const TextSet>(std::make_unique<ByteTokenizer>(),
                                         std::move(chat_template));
}

absl::StatusOr<std::string> TextSet::Render(const std::vector<ChatMessage>& messages,
                                            bool add_generation_prompt, SteadyTime deadline) const {
  if (!chat_template_.has_value()) {
    return absl::InvalidArgumentError(
        "messages: the model has no chat template; allowed: a text or token ids");
  }
  auto json = nlohmann::ordered_json::array();
  for (const ChatMessage& message : messages) {
    nlohmann::ordered_json entry = {{"role", message.role}, {"content", message.content}};
    if (!message.name.empty()) entry["name"] = message.name;
    json.push_back(std::move(entry));
  }
  ChatTemplateOptions options;
  options.add_generation_prompt = add_generation_prompt;
  options.now = absl::Now();
  options.deadline = std::min(deadline, options.clock->Now() + kRenderTime);
  return chat_template_->Render(json, nlohmann::ordered_json::object(), options);
}

absl::StatusOr<std::vector<Token>> TextSet::PromptTokens(const TokenizeRequest& request,
                                                         SteadyTime deadline) const {
  if (const auto* tokens = std::get_if<std::vector<Token>>(&request.prompt)) return *tokens;
  // As Hugging Face's tokenizers do, special tokens' text is taken for the tokens: prompts are
  // written so.
  if (const auto* text = std::get_if<std::string>(&request.prompt)) {
    const bool add_special = request.add_special_tokens.value_or(true);
    return tokenizer_->Encode(*text, {.add_special = add_special, .parse_special = true});
  }
  MILLRACE_ASSIGN_OR_RETURN(const std::string text,
                            Render(std::get<std::vector<ChatMessage>>(request.prompt),
                                   request.add_generation_prompt, deadline));
  const bool add_special = request.add_special_tokens.value_or(false);
  return tokenizer_->Encode(text, {.add_special = add_special, .parse_special = true});
}

size_t PromptBytes(const Prompt& prompt) {
  if (const auto* text = std::get_if<std::string>(&prompt)) return text->size();
  if (const auto* tokens = std::get_if<std::vector<Token>>(&prompt)) {
    return tokens->size() * sizeof(Token);
  }
  size_t bytes = 0;
  for (const ChatMessage& message : std::get<std::vector<ChatMessage>>(prompt)) {
    bytes += message.role.size() + message.content.size() + message.name.size();
  }
  return bytes;
}

}  // namespace millrace
