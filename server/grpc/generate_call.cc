#include "server/grpc/generate_call.h"

#include <cstddef>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "engine/request/tenant.h"
#include "server/grpc/convert.h"
#include "server/grpc/inference_service.h"

namespace millrace {
namespace {

// A response takes in the events that wait behind its first until it is as large as this.
constexpr size_t kMergedBytes = 16 << 10;

// The log-probabilities of so many tokens of a prompt are put into a response at a time. Then the
// other streams of the thread have their turn.
constexpr ptrdiff_t kDetailsPerTurn = 512;

}  // namespace

std::optional<std::string> RetryHint(const absl::Status& status) {
  if (!absl::IsResourceExhausted(status) && !absl::IsUnavailable(status)) return std::nullopt;
  return StrCat(RetrySeconds(RetryAfter(status).value_or(absl::ZeroDuration())));
}

void AddRetryHint(grpc::CallbackServerContext* context, const absl::Status& status) {
  if (const auto seconds = RetryHint(status)) context->AddTrailingMetadata(kRetryAfter, *seconds);
}

GenerateCall::~GenerateCall() {
  if (!finished_) CancelAll();
}

absl::StatusOr<std::string> GenerateCall::Admit() {
  MILLRACE_RETURN_IF_ERROR(service_.AdmitGenerate(context(), tenant_));
  return TenantName(tenant_);
}

void GenerateCall::Prepare(v1::GenerateRequest request) {
  engine_ = service_.PrepareGenerate(context(), std::move(request), tenant_, request_);
}

void GenerateCall::Begin(const absl::Status& refused) {
  if (!refused.ok()) {
    failed_ = refused;
    return Fail();
  }
  if (!engine_.ok()) {
    failed_ = engine_.status();
    return Fail();
  }
  first_request_id_ = request_.id;
  awaits_echo_ = request_.echo;
  streams_ = (*engine_)->Generate(std::exchange(request_, {}), MakeWake());
  unfinished_ = streams_.size();
  if (cancelled_) CancelAll();
}

bool GenerateCall::TakeEvents(v1::GenerateResponse& response, std::optional<absl::Status>& end) {
  // The prompt comes first, with the first stream, unless that one ends without it.
  const size_t looked_at = awaits_echo_ ? 1 : streams_.size();
  for (size_t i = 0; i < looked_at; ++i) {
    const size_t index = next_;
    if (!awaits_echo_) next_ = (next_ + 1) % streams_.size();
    ResponseStream& stream = *streams_[index];
    std::optional<OutputEvent> event = stream.Next();
    if (!event) continue;
    awaits_echo_ = false;
    response.set_index(static_cast<int32_t>(index));
    if (event->echo) {
      echo_ = std::move(event);
      return TakeEcho(response);
    }
    while (true) {
      if (event->finish) end = event->finish->status;
      const bool last = event->finish.has_value();
      CountTokens(event->prompt_tokens, static_cast<int64_t>(event->tokens.size()));
      AddEvent(*std::move(event), response);
      if (last || response.text().size() >= kMergedBytes || response.logprobs_size() > 0) break;
      event = stream.Next();
      if (!event) break;
    }
    return true;
  }
  return false;
}

bool GenerateCall::TakeEcho(v1::GenerateResponse& response) {
  std::vector<TokenDetail>& details = echo_->details;
  const auto begin = details.begin() + static_cast<ptrdiff_t>(echo_details_);
  const bool last = details.end() - begin <= kDetailsPerTurn;
  const auto end = last ? details.end() : begin + kDetailsPerTurn;
  OutputEvent some;
  some.details.assign(std::make_move_iterator(begin), std::make_move_iterator(end));
  echo_details_ += some.details.size();
  AddEvent(std::move(some), response);
  if (!last) {
    AddPart(response);
    return false;
  }
  details.clear();
  AddEvent(*std::exchange(echo_, std::nullopt), response);
  return true;
}

void GenerateCall::CancelAll() {
  for (const auto& stream : streams_) stream->Cancel(CancelReason::kClientGone);
}

void GenerateCall::Pump() {
  if (writing_ || finished_) return;
  if (failed_) return Fail();
  // Keeps its memory from one response to the next, of all calls of the thread.
  static thread_local v1::GenerateResponse response;
  response.Clear();
  std::optional<absl::Status> end;
  if (awaits_echo_ && !MayAddParts()) return;
  if (echo_.has_value() ? !TakeEcho(response) : !TakeEvents(response, end)) return;
  if (end && !end->ok()) {
    failed_ = std::exchange(end, std::nullopt);
    if (response.token_ids().empty()) return Fail();  // what came before it goes out first
  }
  if (!first_request_id_.empty()) response.set_request_id(std::exchange(first_request_id_, ""));
  const bool last = end && --unfinished_ == 0;
  absl::Status written = last ? WriteAndEnd(response) : Write(response);
  if (response.echo()) v1::GenerateResponse().Swap(&response);  // a prompt's memory is not kept
  if (!written.ok()) {
    failed_ = std::move(written);
    return Fail();
  }
  (last ? finished_ : writing_) = true;
}

void GenerateCall::Fail() {
  CancelAll();
  finished_ = true;
  if (const auto seconds = RetryHint(*failed_)) AddTrailingMetadata(kRetryAfter, seconds->c_str());
  End(ToGrpc(*failed_));
}

void GenerateCall::OnWriteDone(bool ok) {
  writing_ = false;
  if (!ok) failed_ = GoneStatus(context());
  Pump();
}

void GenerateCall::OnCancel() {
  cancelled_ = true;
  CancelAll();
  if (!echo_) return;
  failed_ = GoneStatus(context());  // and makes no further parts, for whose end others wait
  Pump();
}

}  // namespace millrace
