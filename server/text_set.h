// Everything that turns one model's text into tokens and back.
#ifndef MILLRACE_SERVER_TEXT_SET_H_
#define MILLRACE_SERVER_TEXT_SET_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "server/engine.h"
#include "server/request.h"
#include "server/text/chat_template.h"
#include "server/text/tokenizer.h"

namespace millrace {

// Immutable: any number of threads may use it at once.
class TextSet {
 public:
  // Of a GGUF file. The file may go afterwards. A model without a template serves no chats.
  static absl::StatusOr<std::unique_ptr<const TextSet>> Load(const std::string& path);
  // For --device fake: a token is a byte, and a conversation is written as ChatML.
  static absl::StatusOr<std::unique_ptr<const TextSet>> Bytes();

  TextSet(std::unique_ptr<const Tokenizer> tokenizer, std::optional<ChatTemplate> chat_template)
      : tokenizer_(std::move(tokenizer)), chat_template_(std::move(chat_template)) {}

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  bool has_chat_template() const { return chat_template_.has_value(); }

  // The tokens of a prompt. InvalidArgument: the text is too long or not UTF-8, the template
  // refuses the conversation, or there is no template. DeadlineExceeded.
  absl::StatusOr<std::vector<Token>> PromptTokens(const TokenizeRequest& request,
                                                  SteadyTime deadline) const;

 private:
  absl::StatusOr<std::string> Render(const std::vector<ChatMessage>& messages,
                                     bool add_generation_prompt, SteadyTime deadline) const;

  std::unique_ptr<const Tokenizer> tokenizer_;
  std::optional<ChatTemplate> chat_template_;
};

// How much text there is to work on, in bytes (four for a token).
size_t PromptBytes(const Prompt& prompt);

}  // namespace millrace

#endif  // MILLRACE_SERVER_TEXT_SET_H_
