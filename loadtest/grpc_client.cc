#include "loadtest/grpc_client.h"

#include <grpcpp/support/async_stream.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "base/strings.h"

namespace millrace {
namespace {

constexpr auto kListTimeout = std::chrono::seconds(10);
constexpr double kDeadlineSlack = 0.01;  // seconds

void AddMetadata(const Options& options, grpc::ClientContext& context) {
  if (!options.api_key.empty()) context.AddMetadata("authorization", "Bearer " + options.api_key);
  for (const auto& [name, value] : options.headers) {
    std::string lower = name;
    for (char& c : lower) c = absl::ascii_tolower(static_cast<unsigned char>(c));
    context.AddMetadata(lower, value);
  }
}

v1::GenerateRequest MessageOf(const Options& options, const Request& request) {
  v1::GenerateRequest message;
  message.set_model(options.model);
  if (options.chat()) {
    for (const ChatTurn& turn : request.messages) {
      v1::ChatMessage* const to = message.mutable_chat()->add_messages();
      to->set_role(turn.role);
      to->set_content(turn.text);
    }
  } else if (!request.ids.empty()) {
    message.mutable_token_ids()->mutable_ids()->Add(request.ids.begin(), request.ids.end());
  } else {
    message.set_text(request.prompt);
  }
  message.mutable_sampling()->set_temperature(static_cast<float>(options.temperature));
  message.mutable_stopping()->set_max_tokens(static_cast<int32_t>(request.max_tokens));
  message.mutable_stopping()->set_ignore_eos(options.ignore_eos);
  return message;
}

}  // namespace

// One call. It has one operation outstanding at a time, or none while a slow reader pauses.
class GrpcCall {
 public:
  enum class Phase { kStart, kRead, kFinish };

  std::unique_ptr<Exchange> exchange;
  Phase phase = Phase::kStart;
  std::optional<Outcome> outcome;  // decided before the call's end
  grpc::ClientContext context;
  v1::GenerateResponse response;
  std::unique_ptr<grpc::ClientAsyncReader<v1::GenerateResponse>> reader;
  grpc::Status status;

  void End(Outcome why) {
    outcome = why;
    context.TryCancel();
  }
};

absl::StatusOr<std::string> FirstGrpcModel(const Options& options, GrpcChannels& channels) {
  const auto stub = v1::Inference::NewStub(channels.Connect());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kListTimeout);
  AddMetadata(options, context);
  v1::ListModelsResponse models;
  const grpc::Status status = stub->ListModels(&context, {}, &models);
  if (!status.ok()) {
    return absl::UnavailableError(
        StrCat(channels.server(), ": ", Printable(status.error_message(), 200)));
  }
  if (models.models().empty()) {
    return absl::NotFoundError(StrCat(channels.server(), ": the server lists no model"));
  }
  return models.models(0).name();
}

absl::StatusOr<std::string> GrpcServerVersion(const Options& options, GrpcChannels& channels) {
  const auto stub = v1::Inference::NewStub(channels.Connect());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kListTimeout);
  AddMetadata(options, context);
  v1::GetServerInfoResponse info;
  const grpc::Status status = stub->GetServerInfo(&context, {}, &info);
  if (!status.ok()) {
    return absl::UnavailableError(
        StrCat(channels.server(), ": ", Printable(status.error_message(), 200)));
  }
  return info.version();
}

GrpcClient::GrpcClient(GrpcChannels& channels, int64_t connections, Driver& driver)
    : driver_(driver) {
  for (int64_t i = 0; i < connections; ++i) {
    stubs_.push_back(v1::Inference::NewStub(channels.Connect()));
  }
}

GrpcClient::~GrpcClient() {
  queue_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
  }
}

void GrpcClient::Send(std::unique_ptr<Exchange> exchange) {
  const Options& options = driver_.options();
  auto* const call = new GrpcCall;  // `active_` owns it until Finish
  active_.insert(call);
  if (options.deadline > 0) {
    const double left = exchange->record.intended + options.deadline - driver_.Now();
    call->context.set_deadline(std::chrono::system_clock::now() +
                               std::chrono::microseconds(static_cast<int64_t>(left * 1e6)));
  }
  AddMetadata(options, call->context);
  const v1::GenerateRequest message = MessageOf(options, exchange->request);
  call->exchange = std::move(exchange);
  v1::Inference::Stub& stub = *stubs_[next_stub_++ % stubs_.size()];
  call->reader = stub.PrepareAsyncGenerate(&call->context, message, &queue_);
  call->reader->StartCall(call);
}

void GrpcClient::AbortAll() {
  for (GrpcCall* call : active_) call->End(Outcome::kUnfinished);
  while (!paused_.empty()) {  // their next operation sees that the call has ended
    GrpcCall* const call = paused_.top().call;
    paused_.pop();
    call->reader->Read(&call->response, call);
  }
}

void GrpcClient::Take(GrpcCall* call, bool ok) {
  if (call->phase == GrpcCall::Phase::kFinish) return Finish(call);
  if (!ok) {  // the call did not begin, or there is no more to read
    call->phase = GrpcCall::Phase::kFinish;
    call->reader->Finish(&call->status, call);
    return;
  }
  if (call->phase == GrpcCall::Phase::kStart) {
    call->phase = GrpcCall::Phase::kRead;
    call->reader->Read(&call->response, call);
    return;
  }
  Exchange& exchange = *call->exchange;
  const v1::GenerateResponse& response = call->response;
  const double now = driver_.Now();
  const bool is_first = exchange.meter.tokens() == 0 && response.token_ids_size() > 0;
  exchange.meter.Arrive(now, response.token_ids_size());
  ThreadProgress& progress = driver_.progress();
  ThreadProgress::Add(progress.events, 1);
  ThreadProgress::Add(progress.tokens, response.token_ids_size());
  if (is_first) {
    ThreadProgress::Add(progress.first_tokens, 1);
    ThreadProgress::Add(progress.ttft_us,
                        static_cast<int64_t>((now - exchange.record.intended) * 1e6));
  }
  if (exchange.keep_text) exchange.record.text += response.text();
  if (response.has_finish()) {
    exchange.record.prompt_tokens = response.finish().usage().prompt_tokens();
    exchange.record.cached_tokens = response.finish().usage().cached_tokens();
    exchange.counted_tokens = response.finish().usage().completion_tokens();
  }
  const int64_t cancel_after = exchange.request.cancel_after;
  if (cancel_after > 0 && exchange.meter.tokens() >= cancel_after && !call->outcome) {
    call->End(Outcome::kCancelled);
  }
  if (exchange.request.slow && !call->outcome) {
    const double pause = static_cast<double>(response.ByteSizeLong()) / driver_.options().slow_rate;
    paused_.push({now + pause, call});
    return;
  }
  call->reader->Read(&call->response, call);
}

void GrpcClient::Finish(GrpcCall* call) {
  active_.erase(call);
  const std::unique_ptr<GrpcCall> owned(call);
  RequestRecord& record = call->exchange->record;
  record.end = driver_.Now();
  // A server resets the stream at the deadline. If its clock is a little ahead, this arrives before
  // the deadline does here, where it counts as cancelled then.
  const double left = record.intended + driver_.options().deadline - record.end;
  const grpc::StatusCode code = call->status.error_code();
  const bool is_late = code == grpc::StatusCode::DEADLINE_EXCEEDED ||
                       (code == grpc::StatusCode::CANCELLED && left < kDeadlineSlack);
  if (call->outcome) {
    record.outcome = *call->outcome;
  } else if (call->status.ok()) {
    record.outcome = Outcome::kCompleted;
  } else if (is_late && driver_.options().deadline > 0) {
    record.outcome = Outcome::kDeadline;
  } else {
    record.outcome = Outcome::kFailed;
    record.error = StrCat("gRPC ", static_cast<int>(code), ": ", call->status.error_message());
  }
  driver_.Done(std::move(call->exchange));
}

void GrpcClient::ResumePaused(double now) {
  while (!paused_.empty() && paused_.top().until <= now) {
    GrpcCall* const call = paused_.top().call;
    paused_.pop();
    call->reader->Read(&call->response, call);
  }
}

void GrpcClient::Run() {
  double wake = 0;
  bool is_changed = true;
  while (true) {
    const double now = driver_.Now();
    ResumePaused(now);
    if (is_changed || now >= wake) wake = driver_.Tick(now);
    if (driver_.finished()) return;
    is_changed = false;
    double until = wake;
    if (!paused_.empty()) until = std::min(until, paused_.top().until);
    const double wait = std::max(0.0, until - driver_.Now());
    const gpr_timespec deadline =
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                     gpr_time_from_micros(static_cast<int64_t>(wait * 1e6), GPR_TIMESPAN));
    void* tag = nullptr;
    bool ok = false;
    if (queue_.AsyncNext(&tag, &ok, deadline) != grpc::CompletionQueue::GOT_EVENT) continue;
    auto* const call = static_cast<GrpcCall*>(tag);
    is_changed = call->phase == GrpcCall::Phase::kFinish;
    Take(call, ok);
  }
}

}  // namespace millrace
