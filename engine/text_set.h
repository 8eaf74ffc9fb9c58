// The text processing of one model: tokenizer and chat template.
#ifndef MILLRACE_ENGINE_TEXT_SET_H_
#define MILLRACE_ENGINE_TEXT_SET_H_

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "engine/constraints/answer_grammar.h"
#include "engine/constraints/thinking_budget.h"
#include "engine/engine.h"
#include "engine/request/request.h"
#include "engine/text/chat_format.h"
#include "text/chat_template.h"
#include "text/fill_in.h"
#include "text/tokenizer/tokenizer.h"

namespace millrace {

// Immutable: any number of threads may use it at once.
class TextSet {
 public:
  // Reads a GGUF file or a Hugging Face folder, which may go afterwards. A model whose template is
  // missing, or beyond what we render, is served without chats.
  static absl::StatusOr<std::unique_ptr<const TextSet>> Load(const std::string& path,
                                                             const ParserNames& parsers = {});
  // Returns the text set for --device fake: a token is a byte, and a conversation is written as
  // ChatML (with Qwen3's enable_thinking).
  static absl::StatusOr<std::unique_ptr<const TextSet>> Bytes(const ParserNames& parsers = {});

  // If `chat_template` is an error, chats are refused with it. Chats with tools are written by
  // `tool_template`, if there is one.
  TextSet(std::unique_ptr<const Tokenizer> tokenizer, absl::StatusOr<ChatTemplate> chat_template,
          ChatFormat format = {}, TokenizerInfo info = {}, const FillInIds& fill_in = {},
          std::optional<ChatTemplate> tool_template = std::nullopt);

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const TokenizerInfo& info() const { return info_; }
  bool has_chat_template() const { return chat_template_.ok(); }
  // Returns what the chat template writes. Meaningless without a chat template.
  const TemplateTraits& template_traits() const { return format_.traits; }

  // Returns InvalidArgument if a text of so many bytes certainly has more than `max_tokens` tokens.
  absl::Status CheckLength(size_t bytes, int64_t max_tokens) const;

  // Returns the tokens of a prompt. InvalidArgument: the text is not UTF-8, or CheckLength refuses
  // it, the template refuses the conversation, or there is no template, or there are no tokens for
  // a suffix. DeadlineExceeded: rendering did not end in time.
  // Cancelled: `cancelled`, which may be null, was set, and is looked at often.
  absl::StatusOr<std::vector<Token>> PromptTokens(
      const TokenizeRequest& request, int64_t max_tokens, SteadyTime deadline,
      const std::atomic<bool>* cancelled = nullptr) const;

  // Returns the tokens that end what is filled in before a suffix, beside those of every answer.
  absl::Span<const Token> fill_in_ends() const {
    return fill_in_.has_value() ? absl::MakeConstSpan(fill_in_->ends) : absl::Span<const Token>();
  }

  // Returns a parser for each answer to this request, whose prompt has these tokens; nullptr if
  // there is nothing to find. It outlives neither the text set nor is it shared by answers.
  std::unique_ptr<OutputParser> MakeParser(const GenerateRequest& request,
                                           absl::Span<const Token> prompt) const;
  // Returns what the whole answer is held to: the request's grammar behind what the model thinks,
  // and the calls of the chat's tools. Nothing: it is free. InvalidArgument, about `tools`: a
  // schema that cannot be enforced.
  absl::StatusOr<std::optional<HeldAnswer>> AnswerGrammar(const GenerateRequest& request,
                                                          absl::Span<const Token> prompt) const;
  // Returns what is around the reasoning of an answer. InvalidArgument: the model has no reasoning
  // that is known, or has it in channels.
  // `chat` is the prompt's, and null for another prompt.
  absl::StatusOr<ThinkingMarkers> Thinking(const Chat* chat, absl::Span<const Token> prompt) const;
  // Returns the special tokens whose texts a parser needs, ascending.
  const std::vector<Token>& marker_tokens() const { return marker_tokens_; }
  // Return the names of the parsers; empty for none.
  std::string tool_parser() const;
  std::string reasoning_parser() const;
  // Returns the beginning of the answer that stands in the prompt, since the answer must be a call;
  // empty for other requests.
  std::string ForcedCall(const Prompt& prompt) const;

  // Leaves the first of a prompt's tokens, `most` in all: of a text's frame what closes it stays.
  void Truncate(const Prompt& prompt, int32_t most, std::vector<Token>* tokens) const;

 private:
  absl::StatusOr<std::vector<Token>> FillIn(const TokenizeRequest& request, int64_t max_tokens,
                                            const std::atomic<bool>* cancelled) const;
  bool BeginsReasoning(const Chat* chat, absl::Span<const Token> prompt) const;
  AnswerStart StartOf(const GenerateRequest& request, absl::Span<const Token> prompt) const;
  absl::StatusOr<std::string> Render(const Chat& chat, SteadyTime deadline,
                                     const std::atomic<bool>* cancelled) const;

  std::unique_ptr<const Tokenizer> tokenizer_;
  absl::StatusOr<ChatTemplate> chat_template_;
  std::optional<ChatTemplate> tool_template_;
  const ChatFormat format_;
  const TokenizerInfo info_;
  const std::optional<FillInTokens> fill_in_;
  std::vector<Token> marker_tokens_;
  size_t longest_token_ = 0;  // bytes
};

// Returns the size of the text to work on, in bytes: four for a token; a message's own fields, and
// a conversation's template variables.
size_t PromptBytes(const Prompt& prompt);
size_t MessagesBytes(absl::Span<const ChatMessage> messages);

// Returns InvalidArgument for a text, or a conversation, of more than Tokenizer::kMaxTextBytes.
absl::Status CheckPromptBytes(std::string_view field, const Prompt& prompt);

}  // namespace millrace

#endif  // MILLRACE_ENGINE_TEXT_SET_H_
