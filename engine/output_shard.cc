#include "engine/output_shard.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace millrace {
namespace {

// Steps that a shard may be behind before the engine stops planning. The queue itself has no bound:
// beyond these, only the steps in flight and one event for each live request can come.
constexpr size_t kMaxBehind = 256;

absl::Duration Between(SteadyTime from, SteadyTime to) {
  return absl::FromChrono(std::max(to - from, Duration::zero()));
}

Timings MakeTimings(const SequenceEnd& end) {
  Timings timings;
  const SteadyTime scheduled = end.first_scheduled.value_or(end.ended);
  const SteadyTime first_token = end.first_token.value_or(end.ended);
  timings.queue = Between(end.arrival, scheduled);
  timings.prefill = Between(scheduled, first_token);
  timings.decode = Between(first_token, end.ended);
  return timings;
}

}  // namespace

OutputShard::OutputShard(ShardListener* listener)
    : listener_(listener), queue_(std::numeric_limits<size_t>::max()), thread_([this] { Run(); }) {}

OutputShard::~OutputShard() {
  queue_.Close();
  thread_.join();
}

void OutputShard::Deliver(std::shared_ptr<const StepResult> result, std::vector<RoutedEvent> events,
                          SteadyTime when) {
  queue_.TryPush({std::move(result), std::move(events), when});
}

bool OutputShard::HasCapacity() {
  if (queue_.size() < kMaxBehind) return true;
  engine_waits_ = true;
  return queue_.size() < kMaxBehind;
}

void OutputShard::Run() {
  const StepResult nothing;
  while (std::optional<Batch> batch = queue_.Pop()) {
    const StepResult& result = batch->result != nullptr ? *batch->result : nothing;
    for (const RoutedEvent& routed : batch->events) Process(result, batch->when, routed);
    if (engine_waits_ && queue_.size() < kMaxBehind && engine_waits_.exchange(false)) {
      listener_->OnCapacity();
    }
  }
}

void OutputShard::Push(const std::shared_ptr<LiveRequest>& request, OutputEvent event) {
  if (request->lost_output) return;
  request->lost_output = !request->MaySend();
  if (request->lost_output || request->buffer.Push(std::move(event))) return;
  request->lost_output = true;
  request->SetCancelled(CancelReason::kTooSlow);
  listener_->OnNoMoreWanted(request, CancelStatus(CancelReason::kTooSlow));
}

void OutputShard::Process(const StepResult& result, SteadyTime when, const RoutedEvent& routed) {
  const std::shared_ptr<LiveRequest>& request = routed.request;
  const TokenEvent& event = routed.event;
  if (request->batch != nullptr) {
    const Range range = event.embedding;
    const absl::Span<const float> embedding(result.embeddings.data() + range.begin, range.size());
    return listener_->OnEmbedded(request, embedding, *event.end);  // There is one event, the last.
  }
  AnswerText& answer = *request->answer;
  request->cached_tokens = event.cached_tokens;

  answer.AddScored(result, event.scored);
  const bool answered =
      event.sampled.size() > 0 || (event.end.has_value() && event.end->status.ok());
  if (request->request.echo && !request->echoed && answered) {
    request->echoed = true;
    OutputEvent echo = answer.Echo(request->prompt);
    echo.prompt_tokens = request->prompt_tokens;
    Push(request, std::move(echo));
  }
  OutputEvent output;
  output.prompt_tokens = request->prompt_tokens;
  AddSampled(result, when, routed, &output);
  if (event.end.has_value()) {
    End(request, *event.end, std::move(output));
  } else if (!output.tokens.empty()) {
    Push(request, std::move(output));
  }
}

void OutputShard::AddSampled(const StepResult& result, SteadyTime when, const RoutedEvent& routed,
                             OutputEvent* output) {
  const std::shared_ptr<LiveRequest>& request = routed.request;
  const TokenEvent& event = routed.event;
  AnswerText& answer = *request->answer;
  for (int32_t i = event.sampled.begin; i < event.sampled.end && !answer.ended(); ++i) {
    const bool is_stop_token = i + 1 == event.sampled.end && event.end.has_value() &&
                               event.end->reason == EndReason::kStopToken;
    answer.Add(result, result.tokens[i], is_stop_token, output);
    if (request->prediction.has_value()) request->prediction->Add(result.tokens[i].token);
    std::optional<Duration> since_previous;
    if (request->last_token.has_value()) since_previous = when - *request->last_token;
    request->last_token = when;
    listener_->OnToken(*request, since_previous, when - request->arrival);
    if (answer.ended() && !event.end.has_value()) {
      listener_->OnNoMoreWanted(request,
                                absl::CancelledError("a stop string or a call ended the answer"));
    }
  }
}

void OutputShard::End(const std::shared_ptr<LiveRequest>& request, SequenceEnd end,
                      OutputEvent output) {
  AnswerText& answer = *request->answer;
  if (end.status.ok() && !answer.ended()) answer.Flush(&output);
  if (end.status.ok() || answer.ended()) {
    const bool cut = end.reason == EndReason::kLength && !answer.ended();
    answer.FinishParsing(cut ? AnswerEnd::kCut : AnswerEnd::kWhole, &output);
  }
  // An answer whose first event is its last has gone through no Push.
  if (!request->lost_output && (end.status.ok() || answer.ended())) {
    request->lost_output = !request->MaySend();
  }
  if (request->lost_output) output = {};
  end.generated_tokens = answer.num_tokens();
  output.finish = MakeFinish(*request, end);
  listener_->OnFinish(request, std::move(output), end);
}

Finish OutputShard::MakeFinish(const LiveRequest& request, const SequenceEnd& end) {
  Finish finish;
  finish.usage = {.prompt_tokens = end.prompt_tokens,
                  .completion_tokens = end.generated_tokens,
                  .cached_tokens = end.cached_tokens,
                  .reasoning_tokens = request.answer->num_reasoning_tokens()};
  if (request.prediction.has_value()) finish.usage.predicted = request.prediction->tokens();
  finish.timings = MakeTimings(end);
  if (request.request.mean_logprob) finish.mean_logprob = request.answer->mean_logprob();
  if (request.lost_output) {
    finish.reason = FinishReason::kCancelled;
    finish.status = CancelStatus(request.cancelled().value_or(CancelReason::kTooSlow));
  } else if (const std::string* stop = request.answer->stopped()) {
    finish.reason = FinishReason::kStop;
    finish.stopped_by = *stop;
  } else if (request.answer->ended() || end.reason == EndReason::kComplete) {
    finish.reason = FinishReason::kStop;
  } else if (end.reason == EndReason::kStopToken) {
    finish.reason = FinishReason::kStop;
    const std::vector<Token>& asked = request.request.stop_token_ids;
    if (std::find(asked.begin(), asked.end(), *end.stop_token) != asked.end()) {
      finish.stopped_by = *end.stop_token;
    }
  } else if (end.reason == EndReason::kLength) {
    finish.reason = FinishReason::kLength;
  } else {
    finish.reason =
        request.cancelled().has_value() ? FinishReason::kCancelled : FinishReason::kError;
    finish.status = end.status;
  }
  return finish;
}

}  // namespace millrace
