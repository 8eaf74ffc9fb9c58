#include "server/http/generation.h"

#include <utility>

#include "absl/time/clock.h"
#include "base/strings.h"

namespace millrace {
namespace {

bool Failed(const Finish& finish) {
  return finish.reason == FinishReason::kCancelled || finish.reason == FinishReason::kError;
}

}  // namespace

Generation::Generation(ApiRequest request, const std::string& id, Engine& engine, const Wake& wake)
    : request_(std::move(request)),
      writer_(request_, id, engine.info().model_name, absl::ToUnixSeconds(absl::Now())),
      unfinished_(request_.prompts.size() * static_cast<size_t>(request_.n)) {
  choices_.reserve(unfinished_);
  const auto n = static_cast<size_t>(request_.n);
  for (size_t i = 0; i < unfinished_; ++i) {
    GenerateRequest one = request_.options;
    one.id = unfinished_ == 1 ? id : StrCat(id, "-", i);
    Prompt& prompt = request_.prompts[i / n];
    one.sample_index = static_cast<uint32_t>(i % n);
    one.prompt = one.sample_index + 1 == n ? std::move(prompt) : prompt;
    choices_.push_back({.stream = engine.Generate(std::move(one), wake),
                        .logprobs = LogprobsWriter(request_.kind)});
  }
}

Generation::~Generation() {
  for (Choice& choice : choices_) {
    if (!choice.finish) choice.stream->Cancel(CancelReason::kClientGone);
  }
}

Answer::State Generation::Poll(HttpResponse& response, std::string& body) {
  State state = State::kWaiting;
  for (size_t i = 0; i < choices_.size(); ++i) {
    while (!choices_[i].finish) {
      std::optional<OutputEvent> event = choices_[i].stream->Next();
      if (!event) break;
      if (!Take(i, *std::move(event), response, body, state)) return state;
      if (body.size() >= kMaxBodyBytes && unfinished_ > 0) return State::kChunk;
    }
  }
  if (unfinished_ == 0) return Complete(response, body);
  return body.empty() ? State::kWaiting : State::kChunk;
}

bool Generation::Take(size_t index, OutputEvent event, HttpResponse& response, std::string& body,
                      State& state) {
  Choice& choice = choices_[index];
  if (event.finish) {
    choice.finish = *std::move(event.finish);
    --unfinished_;
    if (Failed(*choice.finish)) {
      state = Fail(choice.finish->status, response, body);
      return false;
    }
    choice.part.finish = &*choice.finish;
  }
  if (request_.stream && !begun_) {
    begun_ = true;
    response.status = 200;
    response.content_type = "text/event-stream; charset=utf-8";
    response.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  }
  const bool details = !event.details.empty() && (request_.echo || !event.echo);
  if (event.echo) {
    if (request_.echo) choice.part.text = std::move(event.text);
    if (request_.return_token_ids) choice.part.prompt_token_ids = std::move(event.tokens);
  } else {
    choice.part.text += event.text;
    if (request_.return_token_ids) {
      choice.part.token_ids.insert(choice.part.token_ids.end(), event.tokens.begin(),
                                   event.tokens.end());
    }
  }
  if (details) {
    for (const TokenDetail& detail : event.details) choice.logprobs.Add(detail);
  }
  if (request_.stream) AppendChunk(index, details, body);
  return true;
}

void Generation::AppendChunk(size_t index, bool details, std::string& body) {
  Choice& choice = choices_[index];
  ChoicePart& part = choice.part;
  if (choice.first && request_.kind == ApiKind::kChat) {
    const ChoicePart role{.prompt_token_ids = std::exchange(part.prompt_token_ids, {})};
    writer_.AppendChunk(body, index, role, /*first=*/true);
  }
  choice.first = false;
  if (part.text.empty() && !details && part.token_ids.empty() && part.finish == nullptr) return;
  if (details) choice.logprobs.Flush(part.logprobs);
  writer_.AppendChunk(body, index, part, /*first=*/false);
  part = ChoicePart();
}

Answer::State Generation::Fail(const absl::Status& status, HttpResponse& response,
                               std::string& body) {
  const ApiError error = ErrorFromStatus(status);
  if (!begun_) {
    response = ErrorResponse(error);
    return State::kWhole;
  }
  AnswerWriter::AppendError(body, error);
  return State::kBroken;
}

Answer::State Generation::Complete(HttpResponse& response, std::string& body) {
  if (request_.stream) {
    if (request_.include_usage) writer_.AppendUsageChunk(body, TotalUsage());
    AnswerWriter::AppendDone(body);
    return State::kEnd;
  }
  std::vector<ChoicePart> parts;
  parts.reserve(choices_.size());
  for (Choice& choice : choices_) {
    if (request_.options.logprobs) choice.logprobs.Flush(choice.part.logprobs);
    parts.push_back(std::move(choice.part));
  }
  writer_.AppendWhole(response.body, parts, TotalUsage());
  return State::kWhole;
}

Usage Generation::TotalUsage() const {
  Usage total;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Usage& usage = choices_[i].finish->usage;
    total.completion_tokens += usage.completion_tokens;
    if (i % static_cast<size_t>(request_.n) > 0) continue;  // The prompt has been counted.
    total.prompt_tokens += usage.prompt_tokens;
    total.cached_tokens += usage.cached_tokens;
  }
  return total;
}

}  // namespace millrace
