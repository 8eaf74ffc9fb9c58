#include "server/http/openai/generation.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "base/strings.h"

namespace millrace {
namespace {

bool Failed(const Finish& finish) {
  return finish.reason == FinishReason::kCancelled || finish.reason == FinishReason::kError;
}

}  // namespace

Generation::Generation(ApiRequest request, const std::string& id, Engine& engine, const Wake& wake)
    : request_(std::move(request)),
      wake_(wake),
      writer_(request_, id, request_.model.empty() ? engine.info().model_name : request_.model,
              absl::ToUnixSeconds(absl::Now())),
      unfinished_(request_.prompts.size() * candidates()) {
  choices_.reserve(unfinished_);
  std::shared_ptr<std::atomic<OutputState>> joint;
  if (request_.stream && request_.prompts.size() > 1) {
    joint = std::make_shared<std::atomic<OutputState>>(OutputState::kNone);
    num_awaited_ = request_.prompts.size();
  }
  for (size_t i = 0; i < request_.prompts.size(); ++i) {
    GenerateRequest one = request_.options;
    one.id = request_.prompts.size() == 1 ? id : StrCat(id, "-", i);
    one.prompt = std::move(request_.prompts[i]);
    one.joint_output = joint;
    const Chat* chat = std::get_if<Chat>(&one.prompt);
    const TextTools texts = chat == nullptr ? TextTools() : chat->text_tools;
    for (std::shared_ptr<ResponseStream>& stream : engine.Generate(std::move(one), wake)) {
      choices_.push_back({.stream = std::move(stream),
                          .logprobs = LogprobsWriter(request_.kind, request_.logprobs.value_or(0)),
                          .texts = ArgumentTexts(texts)});
    }
    choices_[i * candidates()].awaited = joint != nullptr;
  }
}

Generation::~Generation() {
  for (Choice& choice : choices_) {
    if (!choice.finish) choice.stream->Cancel(CancelReason::kClientGone);
  }
}

// The header goes out with the first bytes, which the first token may not have: half a character is
// held back.
Answer::State Generation::Poll(HttpResponse& response, std::string& body) {
  const State state = Collect(response, body);
  if (request_.stream && !body.empty() && !std::exchange(begun_, true)) BeginEventStream(response);
  return state;
}

Answer::State Generation::Collect(HttpResponse& response, std::string& body) {
  State state = State::kWaiting;
  for (size_t i = 0; i < choices_.size(); ++i) {
    while (!choices_[i].finish && !AwaitsEcho(i)) {
      if (choices_[i].echo != nullptr) {
        if (!ShowEcho(i, body)) {
          wake_();
          return body.empty() ? State::kWaiting : State::kPause;
        }
      } else {
        std::optional<OutputEvent> event = choices_[i].stream->Next();
        if (!event) break;
        if (std::exchange(choices_[i].awaited, false)) Admit(body);
        if (event->admitted) continue;
        if (!Take(i, *std::move(event), response, body, state)) return state;
      }
      if (body.size() >= kMaxBodyBytes && unfinished_ > 0) return State::kChunk;
    }
  }
  if (unfinished_ == 0) return Complete(response, body);
  return body.empty() ? State::kWaiting : State::kPause;
}

bool Generation::Ping(HttpResponse& response, std::string& body) {
  if (!request_.stream) return false;
  if (!std::exchange(begun_, true)) BeginEventStream(response);
  body += kPingComment;
  return true;
}

std::optional<UsedTokens> Generation::tokens() const {
  UsedTokens counts;
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (i % candidates() == 0) counts.prompt += choices_[i].usage.prompt_tokens;
    counts.completion += choices_[i].usage.completion_tokens;
  }
  return counts.prompt > 0 ? std::optional(counts) : std::nullopt;
}

bool Generation::Take(size_t index, OutputEvent event, HttpResponse& response, std::string& body,
                      State& state) {
  Choice& choice = choices_[index];
  if (event.finish) {
    choice.finish = *std::move(event.finish);
    --unfinished_;
    if (Failed(*choice.finish)) {
      state = Fail(choice, response, body);
      return false;
    }
    choice.part.finish = &*choice.finish;
  }
  if (event.echo) {
    TakeEcho(index, std::move(event));
    return true;
  }
  choice.part.text += event.text;
  if (request_.include_reasoning) choice.part.reasoning += event.reasoning;
  choice.called = choice.called || !event.calls.empty();
  choice.part.called = choice.called;
  choice.texts.Take(event.calls);
  if (choice.finish) choice.texts.Flush(event.calls);
  MergeCalls(std::move(event.calls), choice.part.calls);
  choice.usage.prompt_tokens = std::max(choice.usage.prompt_tokens, event.prompt_tokens);
  choice.usage.completion_tokens += static_cast<int32_t>(event.tokens.size());
  if (request_.return_token_ids) {
    choice.part.token_ids.insert(choice.part.token_ids.end(), event.tokens.begin(),
                                 event.tokens.end());
  }
  if (request_.logprobs) {
    for (const TokenDetail& detail : event.details) choice.logprobs.Add(detail);
    choice.has_logprobs = choice.has_logprobs || !event.details.empty();
  }
  AppendChunk(index, body);
  return true;
}

// The prompt, for all of its choices.
void Generation::TakeEcho(size_t index, OutputEvent event) {
  const auto echo = std::make_shared<const OutputEvent>(std::move(event));
  for (size_t i = index; i < index + candidates(); ++i) choices_[i].echo = echo;
}

bool Generation::ShowEcho(size_t index, std::string& body) {
  Choice& choice = choices_[index];
  // A chat shows its prompt once.
  const bool beside =
      request_.prompt_logprobs && (request_.kind == ApiKind::kCompletion || index == 0);
  const bool within = request_.echo && request_.logprobs;
  const bool first = choice.echo_details == 0;
  if (!beside && !within) choice.echo_details = choice.echo->details.size();
  const absl::Span<const TokenDetail> details =
      absl::MakeConstSpan(choice.echo->details).subspan(choice.echo_details, kDetailsPerTurn);
  choice.echo_details += details.size();
  const bool last = choice.echo_details == choice.echo->details.size();
  if (beside) {
    std::string& out = choice.part.prompt_logprobs;
    if (first) out += '[';
    AppendPromptLogprobs(out, details, *request_.prompt_logprobs);
    if (last) out += ']';
  }
  if (within) {
    for (const TokenDetail& detail : details) choice.logprobs.Add(detail);
    choice.has_logprobs = choice.has_logprobs || !details.empty();
  }
  if (!last) return false;
  const auto echo = std::exchange(choice.echo, nullptr);
  choice.echoed = true;
  choice.usage.prompt_tokens = echo->prompt_tokens;
  if (request_.echo) choice.part.text = echo->text;
  if (request_.return_token_ids) {
    choice.part.prompt_token_ids.assign(echo->tokens.begin(), echo->tokens.end());
  }
  AppendChunk(index, body);
  return true;
}

// Returns whether the choice has to wait for its prompt's first one.
bool Generation::AwaitsEcho(size_t index) const {
  const Choice& choice = choices_[index];
  return request_.options.echo && index % candidates() != 0 && !choice.echoed &&
         choice.echo == nullptr;
}

// Once the last prompt was taken in, what the others have got by then goes out.
void Generation::Admit(std::string& body) {
  if (--num_awaited_ > 0) return;
  for (size_t i = 0; i < choices_.size(); ++i) AppendChunk(i, body);
}

void Generation::AppendChunk(size_t index, std::string& body) {
  if (!request_.stream || num_awaited_ > 0) return;
  Choice& choice = choices_[index];
  ChoicePart& part = choice.part;
  if (choice.first && request_.kind == ApiKind::kChat) {
    const ChoicePart role{.prompt_token_ids = std::exchange(part.prompt_token_ids, {}),
                          .usage = {.prompt_tokens = choice.usage.prompt_tokens}};
    writer_.AppendChunk(body, index, role, /*first=*/true);
    choice.first = false;
  }
  const bool shows = !part.text.empty() || !part.reasoning.empty() || !part.calls.empty();
  const bool details = std::exchange(choice.has_logprobs, false);
  if (!shows && !details && part.token_ids.empty() && part.finish == nullptr) return;
  choice.first = false;
  if (details) choice.logprobs.Flush(part.logprobs);
  part.usage = choice.usage;
  writer_.AppendChunk(body, index, part, /*first=*/false);
  part = ChoicePart();
}

// A choice that was refused refuses the whole request, as long as nothing was sent: what `body` has
// of others is dropped.
Answer::State Generation::Fail(const Choice& choice, HttpResponse& response, std::string& body) {
  const absl::Status& status = choice.finish->status;
  ApiError error = ErrorFromStatus(status);
  // The engine knows a prompt, whatever the field that it came in.
  if (absl::IsOutOfRange(status)) {
    error.param = request_.kind == ApiKind::kChat ? "messages" : "prompt";
  }
  if (!begun_ && (body.empty() || choice.first)) {
    body.clear();
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
  for (size_t prompt = 0; prompt < choices_.size() / candidates(); ++prompt) {
    for (const size_t index : Best(prompt)) {
      Choice& choice = choices_[index];
      if (request_.logprobs) choice.logprobs.Flush(choice.part.logprobs);
      parts.push_back(std::move(choice.part));
    }
  }
  writer_.AppendWhole(response.body, parts, TotalUsage());
  return State::kWhole;
}

// Returns the n of the prompt's candidates to answer with, the one with the highest log-probability
// a token first, as OpenAI has it; all in their order where no more were asked for.
std::vector<size_t> Generation::Best(size_t prompt) const {
  std::vector<size_t> order(candidates());
  std::iota(order.begin(), order.end(), prompt * candidates());
  if (!request_.options.mean_logprob) return order;
  // An answer without a token says nothing against itself.
  const auto score = [&](size_t i) { return choices_[i].finish->mean_logprob.value_or(0); };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return score(a) > score(b); });
  order.resize(static_cast<size_t>(request_.n));
  return order;
}

Usage Generation::TotalUsage() const {
  Usage total;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Usage& usage = choices_[i].finish->usage;
    total.completion_tokens += usage.completion_tokens;
    total.reasoning_tokens += usage.reasoning_tokens;
    if (usage.predicted.has_value()) {
      PredictedTokens& predicted =
          total.predicted.has_value() ? *total.predicted : total.predicted.emplace();
      predicted.accepted += usage.predicted->accepted;
      predicted.rejected += usage.predicted->rejected;
    }
    if (i % candidates() > 0) continue;  // The prompt has been counted.
    total.prompt_tokens += usage.prompt_tokens;
    total.cached_tokens += usage.cached_tokens;
  }
  return total;
}

}  // namespace millrace
