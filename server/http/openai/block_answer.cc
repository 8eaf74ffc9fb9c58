#include "server/http/openai/block_answer.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "server/http/openai/openai_response.h"

namespace millrace {
namespace {

constexpr size_t kMaxBodyBytes = 256 << 10;  // about, of one poll

TextTools TextToolsOf(const ApiRequest& request) {
  const Chat* chat = std::get_if<Chat>(&request.prompts.front());
  return chat == nullptr ? TextTools() : chat->text_tools;
}

}  // namespace

void RenameField(std::string_view chat_name, std::string_view name, ApiError& error) {
  for (std::string* text : {&error.message, &error.param}) {
    const bool field = text->starts_with(chat_name) &&
                       (text->size() == chat_name.size() || (*text)[chat_name.size()] == ' ' ||
                        (*text)[chat_name.size()] == '[');
    if (field) text->replace(0, chat_name.size(), name);
  }
}

BlockAnswer::BlockAnswer(ApiRequest request, std::string id, Engine& engine, const Wake& wake)
    : request_(std::move(request)),
      id_(std::move(id)),
      model_(request_.model.empty() ? engine.info().model_name : request_.model),
      created_(absl::ToUnixSeconds(absl::Now())),
      texts_(TextToolsOf(request_)) {
  GenerateRequest one = request_.options;
  one.id = id_;
  one.prompt = std::move(request_.prompts.front());
  stream_ = engine.Generate(std::move(one), wake).front();
}

BlockAnswer::~BlockAnswer() {
  if (!finished_) stream_->Cancel(CancelReason::kClientGone);
}

bool BlockAnswer::called() const {
  return std::any_of(blocks_.begin(), blocks_.end(), [](const AnswerBlock& block) {
    return block.kind == AnswerBlock::Kind::kCall;
  });
}

Answer::State BlockAnswer::Poll(HttpResponse& response, std::string& body) {
  while (std::optional<OutputEvent> event = stream_->Next()) {
    prompt_tokens_ = std::max(prompt_tokens_, event->prompt_tokens);
    completion_tokens_ += static_cast<int64_t>(event->tokens.size());
    const std::optional<Finish> finish = std::move(event->finish);
    finished_ = finish.has_value();
    if (finished_ &&
        (finish->reason == FinishReason::kCancelled || finish->reason == FinishReason::kError)) {
      const ApiError error = ErrorFromStatus(finish->status);
      if (!header_sent_) {
        response = Refusal(error);
        return State::kWhole;
      }
      BeginOnce(response, body);
      Break(error, body);
      return State::kBroken;
    }
    if (request_.stream) BeginOnce(response, body);
    Take(*std::move(event), body);
    if (finished_) {
      CloseLast(finish->reason != FinishReason::kLength, body);
      if (request_.stream) {
        End(*finish, body);
        return State::kEnd;
      }
      body.clear();
      response.shared_body = Whole(*finish);
      return State::kWhole;
    }
    if (!request_.stream) body.clear();
    if (body.size() >= kMaxBodyBytes) return State::kChunk;
  }
  return body.empty() ? State::kWaiting : State::kPause;
}

std::optional<UsedTokens> BlockAnswer::tokens() const {
  if (prompt_tokens_ == 0) return std::nullopt;
  return UsedTokens{.prompt = prompt_tokens_, .completion = completion_tokens_};
}

bool BlockAnswer::Ping(HttpResponse& response, std::string& body) {
  if (!request_.stream) return false;
  if (!std::exchange(header_sent_, true)) BeginEventStream(response);
  body += kPingComment;
  return true;
}

void BlockAnswer::BeginOnce(HttpResponse& response, std::string& body) {
  if (!std::exchange(header_sent_, true)) BeginEventStream(response);
  if (!std::exchange(begun_, true)) Begin(body);
}

void BlockAnswer::Take(OutputEvent event, std::string& body) {
  if (!event.text.empty() || !event.reasoning.empty()) {
    std::vector<ToolCallDelta> rest;  // of a call, which is over
    texts_.Flush(rest);
    TakeCalls(std::move(rest), body);
  }
  if (request_.include_reasoning) Add(AnswerBlock::Kind::kReasoning, event.reasoning, body);
  Add(AnswerBlock::Kind::kText, event.text, body);
  texts_.Take(event.calls);
  if (finished_) texts_.Flush(event.calls);
  TakeCalls(std::move(event.calls), body);
}

void BlockAnswer::TakeCalls(std::vector<ToolCallDelta> calls, std::string& body) {
  for (ToolCallDelta& call : calls) {
    if (!call.name.empty()) {
      CloseLast(/*complete=*/true, body);
      blocks_.push_back({.kind = AnswerBlock::Kind::kCall,
                         .index = blocks_.size(),
                         .name = std::move(call.name),
                         .id = call.id.empty()
                                   ? std::string(call_id_prefix()) + ToolCallId(id_, 0, call.index)
                                   : std::move(call.id),
                         .is_text = call.is_text});
      open_ = true;
      Open(blocks_.back(), body);
    }
    Add(AnswerBlock::Kind::kCall, call.arguments, body);
  }
}

void BlockAnswer::Add(AnswerBlock::Kind kind, std::string_view text, std::string& body) {
  if (text.empty()) return;
  if (!open_ || blocks_.back().kind != kind) {
    CloseLast(/*complete=*/true, body);
    blocks_.push_back({.kind = kind, .index = blocks_.size()});
    open_ = true;
    Open(blocks_.back(), body);
  }
  blocks_.back().text += text;
  Delta(blocks_.back(), text, body);
}

void BlockAnswer::CloseLast(bool complete, std::string& body) {
  if (std::exchange(open_, false)) Close(blocks_.back(), complete, body);
}

}  // namespace millrace
