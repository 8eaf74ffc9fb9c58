#include "engine/answer/answer_text.h"

#include <utility>

namespace millrace {
AnswerText::AnswerText(const Tokenizer* tokenizer, const GenerateRequest* request)
    : tokenizer_(tokenizer),
      request_(request),
      // It goes on from the prompt: joined, the two read as one text.
      detokenizer_(tokenizer, request->skip_special_tokens, /*follows=*/true),
      stops_(request->stop, request->include_stop_str_in_output) {}

void AnswerText::Parse(std::unique_ptr<OutputParser> parser, std::string_view begun,
                       const std::vector<Token>* kept, bool one_call) {
  parser_ = std::move(parser);
  one_call_ = one_call;
  if (parser_ == nullptr) return;
  detokenizer_.Keep(kept);
  if (begun.empty()) return;
  parser_->Add(begun, &begun_);
  parser_->Commit(&begun_);
}

// Returns whether the token is left out of a decoded text.
bool AnswerText::Skips(Token token) const {
  return request_->skip_special_tokens && tokenizer_->IsSpecial(token);
}

TokenDetail AnswerText::Detail(const StepResult& result, const TokenResult& token) const {
  TokenDetail detail{.token = token.token,
                     .bytes = std::string(tokenizer_->TokenBytes(token.token)),
                     .shown = !Skips(token.token),
                     .logprob = token.logprob,
                     .rank = token.rank};
  detail.top.reserve(token.top.size());
  for (int32_t i = token.top.begin; i < token.top.end; ++i) {
    const TokenLogprob& other = result.top[i];
    detail.top.push_back(
        {other.token, std::string(tokenizer_->TokenBytes(other.token)), other.logprob});
  }
  return detail;
}

void AnswerText::AddScored(const StepResult& result, Range scored) {
  for (int32_t i = scored.begin; i < scored.end; ++i) {
    scored_.push_back(Detail(result, result.tokens[i]));
  }
}

OutputEvent AnswerText::Echo(absl::Span<const Token> prompt) {
  OutputEvent event;
  event.echo = true;
  event.tokens.assign(prompt.begin(), prompt.end());
  const auto* text = std::get_if<std::string>(&request_->prompt);
  if (request_->detokenize) {
    event.text =
        text != nullptr ? *text : Decode(*tokenizer_, prompt, request_->skip_special_tokens);
  }
  if (request_->logprobs.has_value()) {
    event.details.reserve(prompt.size());
    event.details.push_back(
        {.token = prompt[0], .bytes = std::string(tokenizer_->TokenBytes(prompt[0]))});
    for (TokenDetail& detail : scored_) event.details.push_back(std::move(detail));
    scored_.clear();
    // A text is shown as it was sent, with the special tokens in it; only its frame is not.
    const auto opening = static_cast<size_t>(tokenizer_->text_frame().opening);
    const size_t end = prompt.size() - tokenizer_->text_frame().closing;
    for (size_t i = 0; i < event.details.size(); ++i) {
      event.details[i].shown = text != nullptr ? i >= opening && i < end : !Skips(prompt[i]);
    }
  }
  return event;
}

void AnswerText::Add(const StepResult& result, const TokenResult& token, bool is_stop_token,
                     OutputEvent* event) {
  ++num_tokens_;
  if (token.logprob.has_value()) {
    ++num_logprobs_;
    sum_logprobs_ += *token.logprob;
  }
  event->tokens.push_back(token.token);
  const bool hidden = is_stop_token && !request_->include_stop_str_in_output;
  if (request_->logprobs.has_value()) {
    event->details.push_back(Detail(result, token));
    if (hidden) event->details.back().shown = false;
  }
  const bool reasons = parser_ != nullptr && parser_->in_reasoning();
  // A text that is not shown may still end the answer.
  const bool needed = request_->detokenize || parser_ != nullptr || !stops_.empty();
  if (!hidden && needed) AddText(detokenizer_.Add(token.token), event);
  // Its markers belong to the reasoning.
  if (reasons || (parser_ != nullptr && parser_->in_reasoning())) CountReasoning();
}

// Counts a token of the reasoning. Those that may be a call's wait until that is decided.
void AnswerText::CountReasoning() {
  ++num_undecided_tokens_;
  if (!parser_->may_be_call()) {
    num_reasoning_tokens_ += std::exchange(num_undecided_tokens_, 0);
  }
}

void AnswerText::Emit(std::string_view text, OutputEvent* event) {
  if (parser_ == nullptr) {
    if (request_->detokenize) event->text += text;
    return;
  }
  OutputDelta delta = std::exchange(begun_, OutputDelta());
  parser_->Add(text, &delta);
  Move(std::move(delta), event);
  called_ = called_ || (one_call_ && parser_->complete_calls() > 0);
}

void AnswerText::Move(OutputDelta delta, OutputEvent* event) const {
  if (!request_->detokenize) return;
  event->text += delta.content;
  event->reasoning += delta.reasoning;
  for (ToolCallDelta& call : delta.calls) {
    // Several may end with one piece of text.
    if (!one_call_ || call.index == 0) event->calls.push_back(std::move(call));
  }
}

void AnswerText::FinishParsing(AnswerEnd end, OutputEvent* event) {
  if (parser_ == nullptr) return;
  OutputDelta delta = std::exchange(begun_, OutputDelta());
  parser_->Finish(end, &delta);
  // A call is the end of the reasoning in which it stands.
  if (parser_->in_reasoning()) num_reasoning_tokens_ += std::exchange(num_undecided_tokens_, 0);
  Move(std::move(delta), event);
}

std::optional<double> AnswerText::mean_logprob() const {
  if (num_logprobs_ == 0) return std::nullopt;
  return sum_logprobs_ / num_logprobs_;
}

void AnswerText::AddText(const std::string& text, OutputEvent* event) {
  if (parser_ == nullptr || stops_.empty()) return AddOutsideReasoning(text, event);
  for (size_t i = 0; i < text.size() && !stopped_.has_value(); ++i) {
    const std::string_view byte = std::string_view(text).substr(i, 1);
    if (parser_->in_reasoning()) {
      Emit(byte, event);
    } else {
      AddOutsideReasoning(byte, event);
    }
  }
}

void AnswerText::AddOutsideReasoning(std::string_view text, OutputEvent* event) {
  StopChecker::Result checked = stops_.Add(text, num_tokens_ > request_->min_tokens);
  Emit(checked.text, event);
  stopped_ = checked.stopped;
}

void AnswerText::Flush(OutputEvent* event) {
  AddText(detokenizer_.Flush(), event);
  if (!stopped_.has_value()) Emit(stops_.Flush(), event);
}

}  // namespace millrace
