#include "engine/text_set.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/text/call_turns.h"
#include "engine/text/template_messages.h"
#include "formats/json/exact_json.h"
#include "formats/json/json.h"
#include "formats/model_text.h"
#include "text/detokenizer.h"
#include "text/tokenizer/pipeline_tokenizer.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kText);

// Limit on one rendering; a template comes with the model, and may be a bad one.
constexpr Duration kRenderTime = std::chrono::seconds(2);

constexpr std::string_view kChatMl =
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}";

// Returns the texts of the special tokens, one a line.
std::string SpecialTokens(const Tokenizer& tokenizer) {
  std::string texts;
  for (Token token = 0; token < tokenizer.vocab_size(); ++token) {
    if (!tokenizer.IsSpecial(token)) continue;
    texts += tokenizer.TokenBytes(token);
    texts += '\n';
  }
  return texts;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const TextSet>> TextSet::Load(const std::string& path,
                                                             const ParserNames& parsers) {
  MILLRACE_ASSIGN_OR_RETURN(const ModelText text, ReadModelText(path));
  for (const std::string& warning : text.warnings) kLog.Warning(warning);
  MILLRACE_ASSIGN_OR_RETURN(std::unique_ptr<const Tokenizer> tokenizer,
                            PipelineTokenizer::Create(text.tokenizer));
  absl::StatusOr<ChatTemplate> chat_template = absl::InvalidArgumentError(
      "messages: the model has no chat template; allowed: a text prompt");
  if (!text.chat_template.empty()) {
    chat_template = ChatTemplate::Parse(
        text.chat_template,
        {.bos = text.bos, .eos = text.eos, .unk = text.unknown, .pad = text.pad});
    if (!chat_template.ok()) {
      kLog.Warning("chats will be refused: ", std::string(chat_template.status().message()));
    }
  }
  std::optional<ChatTemplate> tool_template;
  if (!text.tool_template.empty()) {
    absl::StatusOr<ChatTemplate> parsed = ChatTemplate::Parse(
        text.tool_template,
        {.bos = text.bos, .eos = text.eos, .unk = text.unknown, .pad = text.pad});
    if (parsed.ok()) {
      tool_template = *std::move(parsed);
    } else {
      kLog.Warning("chats with tools are written by the other template: ",
                   std::string(parsed.status().message()));
    }
  }
  MILLRACE_ASSIGN_OR_RETURN(ChatFormat format, MakeChatFormat(text.chat_template, chat_template,
                                                              parsers, SpecialTokens(*tokenizer)));
  if (tool_template.has_value()) {
    // Calls are written as the template of chats with tools writes them.
    MILLRACE_ASSIGN_OR_RETURN(const ChatFormat by_tools,
                              MakeChatFormat(text.tool_template, *tool_template, parsers));
    if (by_tools.output.tools() != nullptr) format.output.SetTools(*by_tools.output.tools());
    format.tool_traits = by_tools.traits;
  }
  TokenizerInfo info = {.bos = text.bos, .eos = text.eos, .unknown = text.unknown, .pad = text.pad};
  if (chat_template.ok()) info.chat_template = text.chat_template;
  info.bos_id = text.tokenizer.bos;
  info.chat_bos = text.chat_bos;
  info.chat_eos = text.chat_eos;
  info.pad_id = text.tokenizer.pad;
  info.path = path;
  return std::make_unique<const TextSet>(std::move(tokenizer), std::move(chat_template),
                                         std::move(format), std::move(info), text.fill_in,
                                         std::move(tool_template));
}

TextSet::TextSet(std::unique_ptr<const Tokenizer> tokenizer,
                 absl::StatusOr<ChatTemplate> chat_template, ChatFormat format, TokenizerInfo info,
                 const FillInIds& fill_in, std::optional<ChatTemplate> tool_template)
    : tokenizer_(std::move(tokenizer)),
      chat_template_(std::move(chat_template)),
      tool_template_(std::move(tool_template)),
      format_(std::move(format)),
      info_(std::move(info)),
      fill_in_(FindFillInTokens(*tokenizer_, fill_in)) {
  const std::vector<std::string> markers = format_.output.Markers();
  for (Token token = 0; token < tokenizer_->vocab_size(); ++token) {
    const std::string_view bytes = tokenizer_->TokenBytes(token);
    longest_token_ = std::max(longest_token_, bytes.size());
    if (tokenizer_->IsSpecial(token) &&
        std::find(markers.begin(), markers.end(), bytes) != markers.end()) {
      marker_tokens_.push_back(token);
    }
  }
}

absl::StatusOr<std::unique_ptr<const TextSet>> TextSet::Bytes(const ParserNames& parsers) {
  absl::StatusOr<ChatTemplate> chat_template = ChatTemplate::Parse(kChatMl, {});
  MILLRACE_ASSIGN_OR_RETURN(ChatFormat format, MakeChatFormat(kChatMl, chat_template, parsers));
  return std::make_unique<const TextSet>(std::make_unique<ByteTokenizer>(),
                                         std::move(chat_template), std::move(format),
                                         TokenizerInfo{.chat_template = std::string(kChatMl)});
}

absl::StatusOr<std::string> TextSet::Render(const Chat& chat, SteadyTime deadline,
                                            const std::atomic<bool>* cancelled) const {
  MILLRACE_RETURN_IF_ERROR(chat_template_.status());
  auto kwargs = OrderedJson::object();
  if (!chat.template_kwargs.empty()) {
    auto read = ParseExact(chat.template_kwargs, {.depth = 128, .repeats = true});
    if (!read.ok() || !read->is_object()) {
      return absl::InvalidArgumentError("chat_template_kwargs is no JSON object");
    }
    kwargs = *std::move(read);
  }
  ChatTemplateOptions options;
  options.add_generation_prompt = chat.add_generation_prompt;
  options.continue_final_message = chat.continue_final_message;
  options.now = absl::Now();
  const SteadyTime too_long = options.clock->Now() + kRenderTime;
  options.deadline = std::min(deadline, too_long);
  options.cancelled = cancelled;
  const bool by_tools = tool_template_.has_value() && !chat.tools.empty();
  const ChatTemplate& chosen = by_tools ? *tool_template_ : *chat_template_;
  const TemplateTraits& chosen_traits = by_tools ? format_.tool_traits : format_.traits;
  const auto render = [&](const TemplateTraits& traits) -> absl::StatusOr<std::string> {
    OrderedJson variables = kwargs;
    MILLRACE_RETURN_IF_ERROR(AddTemplateVariables(chat, format_, traits, &variables));
    return chosen.Render(TemplateMessages(chat, traits, format_.output), variables, options);
  };
  absl::StatusOr<std::string> text = render(chosen_traits);
  if (absl::IsInvalidArgument(text.status()) && UsesTools(chat)) {
    // The template may refuse a tool's schema or a call that it takes as text.
    if (auto as_text = render(AsText(chosen_traits)); as_text.ok()) text = std::move(as_text);
  }
  if (absl::IsDeadlineExceeded(text.status()) && too_long <= deadline) {
    return absl::InvalidArgumentError("messages: the chat template takes too long for them");
  }
  if (text.ok() && chat.forced_tool.has_value()) {
    *text += format_.output.ForcedCall(*chat.forced_tool, *text, CountCalls(chat.messages));
  }
  return text;
}

absl::Status TextSet::CheckLength(size_t bytes, int64_t max_tokens) const {
  const auto most = static_cast<uint64_t>(max_tokens) * longest_token_;
  if (bytes <= most) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat("prompt has ", bytes, " bytes, at most ", most,
                                            " can fit in ", max_tokens, " tokens"));
}

// Returns the tokens of a prompt with a suffix.
absl::StatusOr<std::vector<Token>> TextSet::FillIn(const TokenizeRequest& request,
                                                   int64_t max_tokens,
                                                   const std::atomic<bool>* cancelled) const {
  if (!fill_in_.has_value()) {
    return absl::InvalidArgumentError(
        "suffix: the model has no tokens to fill in the middle of a text; allowed: none");
  }
  MILLRACE_RETURN_IF_ERROR(CheckLength(request.suffix.size(), max_tokens));
  const auto* text = std::get_if<std::string>(&request.prompt);
  if (text == nullptr) {
    return FillInPrompt(*tokenizer_, *fill_in_, std::get<std::vector<Token>>(request.prompt),
                        request.suffix);
  }
  MILLRACE_RETURN_IF_ERROR(CheckLength(text->size(), max_tokens));
  MILLRACE_ASSIGN_OR_RETURN(
      const std::vector<Token> prefix,
      tokenizer_->Encode(*text,
                         {.add_special = false, .parse_special = false, .cancelled = cancelled}));
  return FillInPrompt(*tokenizer_, *fill_in_, prefix, request.suffix);
}

absl::StatusOr<std::vector<Token>> TextSet::PromptTokens(const TokenizeRequest& request,
                                                         int64_t max_tokens, SteadyTime deadline,
                                                         const std::atomic<bool>* cancelled) const {
  if (!request.suffix.empty()) return FillIn(request, max_tokens, cancelled);
  if (const auto* tokens = std::get_if<std::vector<Token>>(&request.prompt)) return *tokens;
  const auto encode = [&](std::string_view text,
                          bool add_special) -> absl::StatusOr<std::vector<Token>> {
    MILLRACE_RETURN_IF_ERROR(CheckLength(text.size(), max_tokens));
    // As Hugging Face's tokenizers do, special tokens' text is taken for the tokens: prompts are
    // written so.
    return tokenizer_->Encode(
        text, {.add_special = add_special, .parse_special = true, .cancelled = cancelled});
  };
  if (const auto* text = std::get_if<std::string>(&request.prompt)) {
    return encode(*text, request.add_special_tokens.value_or(true));
  }
  MILLRACE_ASSIGN_OR_RETURN(const std::string text,
                            Render(std::get<Chat>(request.prompt), deadline, cancelled));
  if (request.add_special_tokens.has_value()) return encode(text, *request.add_special_tokens);
  MILLRACE_ASSIGN_OR_RETURN(std::vector<Token> tokens, encode(text, false));
  if (info_.chat_bos.has_value() && (tokens.empty() || tokens.front() != *info_.chat_bos)) {
    tokens.insert(tokens.begin(), *info_.chat_bos);
  }
  if (info_.chat_eos.has_value() && (tokens.empty() || tokens.back() != *info_.chat_eos)) {
    tokens.push_back(*info_.chat_eos);
  }
  return tokens;
}

std::string TextSet::tool_parser() const {
  return format_.output.tools() == nullptr ? "" : format_.output.tools()->name;
}

std::string TextSet::reasoning_parser() const {
  return format_.output.reasoning() == nullptr ? "" : format_.output.reasoning()->name;
}

// Returns whether the prompt has opened the reasoning, which its last tokens tell: those before the
// beginning of the answer, and that.
bool TextSet::BeginsReasoning(const Chat* chat, absl::Span<const Token> prompt) const {
  std::string_view prefill;
  if (chat != nullptr && chat->continue_final_message && !chat->messages.empty()) {
    prefill = chat->messages.back().content;
  }
  const size_t end = 64 + prefill.size();
  if (prompt.size() > end) prompt = prompt.subspan(prompt.size() - end);
  return format_.output.BeginsReasoning(Decode(*tokenizer_, prompt, /*skip_special=*/false),
                                        prefill);
}

AnswerStart TextSet::StartOf(const GenerateRequest& request, absl::Span<const Token> prompt) const {
  const Chat* chat = std::get_if<Chat>(&request.prompt);
  if (BeginsReasoning(chat, prompt)) return AnswerStart::kInReasoning;
  const bool continues = chat != nullptr && chat->continue_final_message &&
                         !chat->messages.empty() && !chat->messages.back().content.empty();
  if (continues) return AnswerStart::kContent;
  const ReasoningFormat* reasoning = format_.output.reasoning();
  if (reasoning == nullptr || reasoning->harmony) return AnswerStart::kMayThink;
  constexpr size_t kEnd = 64;
  if (prompt.size() > kEnd) prompt = prompt.subspan(prompt.size() - kEnd);
  const std::string end = Decode(*tokenizer_, prompt, /*skip_special=*/false);
  const auto ends = [&](const std::string& close) { return Trim(end).ends_with(close); };
  const ThinkFormat& think = reasoning->think;
  const bool over =
      ends(think.close) || std::any_of(think.more_closes.begin(), think.more_closes.end(), ends);
  return over ? AnswerStart::kContent : AnswerStart::kMayThink;
}

absl::StatusOr<std::optional<HeldAnswer>> TextSet::AnswerGrammar(
    const GenerateRequest& request, absl::Span<const Token> prompt) const {
  const Chat* chat = std::get_if<Chat>(&request.prompt);
  if (chat == nullptr && !request.is_rendered_chat) {
    if (!request.grammar.has_value()) return std::nullopt;
    return HeldAnswer{.grammar = *request.grammar};
  }
  return millrace::AnswerGrammar(
      {.chat = chat,
       .format = request.grammar.has_value() ? &*request.grammar : nullptr,
       .start = StartOf(request, prompt),
       .parallel_tool_calls = request.parallel_tool_calls},
      format_.output);
}

absl::StatusOr<ThinkingMarkers> TextSet::Thinking(const Chat* chat,
                                                  absl::Span<const Token> prompt) const {
  const ReasoningFormat* reasoning = format_.output.reasoning();
  if (reasoning == nullptr) {
    return absl::InvalidArgumentError(
        "the model has no reasoning that is known (--reasoning-parser); allowed: none");
  }
  ThinkingMarkers markers = {.inside = BeginsReasoning(chat, prompt)};
  if (reasoning->harmony) {
    markers.pairs = {{"<|channel|>analysis<|message|>", "<|end|>",
                      ChannelsAfterReasoning(chat != nullptr && chat->parse_tools)}};
    markers.closes = {"<|return|>", "<|call|>", "<|start|>", "<|channel|>"};
    return markers;
  }
  const ThinkFormat& think = reasoning->think;
  markers.pairs = {{think.open, think.close}};
  for (size_t i = 0; i < think.more_opens.size(); ++i) {
    const bool paired = i < think.more_closes.size();
    markers.pairs.push_back({think.more_opens[i], paired ? think.more_closes[i] : think.close});
  }
  markers.closes = think.more_closes;
  return markers;
}

std::unique_ptr<OutputParser> TextSet::MakeParser(const GenerateRequest& request,
                                                  absl::Span<const Token> prompt) const {
  const Chat* chat = std::get_if<Chat>(&request.prompt);
  const bool tools = chat != nullptr && chat->parse_tools;
  OutputFormat::Request parse = {.tools = tools,
                                 .reasoning = request.parse_reasoning,
                                 .keeps_reasoning = chat != nullptr && !request.parse_reasoning,
                                 .chat = chat != nullptr || request.is_rendered_chat};
  if (tools) parse.signatures = ToolSignatures(chat->tools);
  parse.inside_reasoning = BeginsReasoning(chat, prompt);
  return format_.output.MakeParser(parse);
}

std::string TextSet::ForcedCall(const Prompt& prompt) const {
  const Chat* chat = std::get_if<Chat>(&prompt);
  if (chat == nullptr || !chat->forced_tool.has_value()) return "";
  return format_.output.ForcedCall(*chat->forced_tool, "", CountCalls(chat->messages));
}

void TextSet::Truncate(const Prompt& prompt, int32_t most, std::vector<Token>* tokens) const {
  if (tokens->size() <= static_cast<size_t>(most)) return;
  const bool framed = std::holds_alternative<std::string>(prompt);
  const int32_t kept = framed ? std::min(tokenizer_->text_frame().closing, most) : 0;
  tokens->erase(tokens->begin() + (most - kept), tokens->end() - kept);
}

size_t PromptBytes(const Prompt& prompt) {
  if (const auto* text = std::get_if<std::string>(&prompt)) return text->size();
  if (const auto* tokens = std::get_if<std::vector<Token>>(&prompt)) {
    return tokens->size() * sizeof(Token);
  }
  const Chat& chat = std::get<Chat>(prompt);
  return chat.template_kwargs.size() + chat.tools.size() + MessagesBytes(chat.messages);
}

size_t MessagesBytes(absl::Span<const ChatMessage> messages) {
  size_t bytes = 0;
  for (const ChatMessage& message : messages) {
    bytes += sizeof(message) + message.role.size() + message.content.size() + message.name.size() +
             message.reasoning.size() + message.tool_call_id.size() +
             message.part_sizes.size() * sizeof(size_t);
    for (const ToolCall& call : message.tool_calls) {
      bytes += sizeof(call) + call.id.size() + call.name.size() + call.arguments.size();
    }
  }
  return bytes;
}

absl::Status CheckPromptBytes(std::string_view field, const Prompt& prompt) {
  const size_t bytes = PromptBytes(prompt);
  if (std::holds_alternative<std::vector<Token>>(prompt) || bytes <= Tokenizer::kMaxTextBytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      StrCat(std::holds_alternative<Chat>(prompt) ? "messages" : field, " has ", bytes,
             " bytes; allowed: at most ", Tokenizer::kMaxTextBytes));
}

}  // namespace millrace
