// Connection's third part: writes, and charges what waits for the client.
#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <utility>

#include "absl/status/status.h"
#include "base/clock.h"
#include "server/http/transport/connection.h"

namespace millrace {
namespace {

namespace net = boost::asio;
using boost::system::error_code;

// A whole answer above this is not copied, and is charged before it begins. Memory above it is
// given back when it is written.
constexpr size_t kLargeBytes = 64 << 10;

// A connection writes so much at most before the others of its thread have their turn.
constexpr size_t kTurnBytes = 256 << 10;

}  // namespace

void Connection::Respond(HttpResponse response, bool keep_alive) {
  phase_ = Phase::kAnswer;
  std::shared_ptr<const SharedBody> body = std::move(response.shared_body);
  if (body == nullptr && response.body.size() > kLargeBytes) {
    body = std::make_shared<const SharedBody>(std::exchange(response.body, {}));
  }
  const bool has_body = head_.method != "HEAD";
  if (body != nullptr && body->size() > kLargeBytes && has_body) {
    if (auto refusal = ChargeWhole(*body)) {
      response = *std::move(refusal);
      body.reset();
    }
  }
  keep_alive_ = keep_alive && !state_.stopping && !state_.api.leaving();
  const bool bodiless = response.status == 204;
  const size_t length = body == nullptr ? response.body.size() : body->size();
  AppendHead(response, bodiless ? Framing::kNone : Framing::kLength, length);
  if (has_body) {
    out_ += response.body;
    body_ = std::move(body);
    body_begin_ = 0;
  }
  head_sent_ = true;
  done_ = true;
  DropAnswer();
  Advance();
}

// The answer to a GET is refused where the tenant's streams are as many as allowed; one that a
// model worked for has been one of them.
std::optional<HttpResponse> Connection::ChargeWhole(const SharedBody& body) {
  const std::shared_ptr<const Tenant> tenant = state_.api.TenantOf(head_);
  absl::Status status = CountStream(tenant, /*always=*/head_.method != "GET");
  if (status.ok()) {
    if (Charge(tenant, body.size(), &body)) return std::nullopt;
    status = charged_->full() == OutputBudget::Scope::kTenant
                 ? absl::ResourceExhaustedError(
                       "the key's answers that wait to be read leave no memory for this one")
                 : absl::UnavailableError(
                       "the answers that wait to be read leave no memory for this one");
  }
  EndWaiting();
  HttpResponse refusal = ErrorResponse(ErrorFromStatus(status));
  state_.api.ShapeError(head_.path, refusal);
  return refusal;
}

absl::Status Connection::CountStream(const std::shared_ptr<const Tenant>& tenant, bool always) {
  if (tenant == nullptr) return absl::OkStatus();
  absl::Status status = tenant->EnterAnswer(always);
  if (status.ok()) counted_ = tenant;
  return status;
}

bool Connection::Charge(const std::shared_ptr<const Tenant>& tenant, uint64_t bytes,
                        const void* buffer) {
  charged_ = std::make_unique<OutputBudget::Share>(state_.outputs, MakeWake());
  taken_ = SocketProgress::Taken(socket_.native_handle(), socket_.sent());
  return charged_->Charge({.tenant = TenantName(tenant)}, bytes, buffer, state_.clock.Now());
}

// Unread events of a stream count as one of the tenant's streams once the engine's has ended.
bool Connection::ChargeWaiting() {
  if (charged_ != nullptr) return !charged_->evicted();
  const std::shared_ptr<const Tenant> tenant = state_.api.TenantOf(head_);
  const bool ended = done_ || (answer_ != nullptr && answer_->ended());
  if (ended) CountStream(tenant, /*always=*/true).IgnoreError();
  const size_t held = answer_ == nullptr ? 0 : answer_->held_bytes();
  return Charge(tenant, out_.capacity() + held + (body_ == nullptr ? 0 : body_->size()), nullptr);
}

// Counts what the client has acknowledged: the system may have taken more.
void Connection::NoteTaken() {
  const uint64_t taken = SocketProgress::Taken(socket_.native_handle(), socket_.sent());
  charged_->NoteTaken(taken - std::exchange(taken_, taken));
}

void Connection::EndWaiting() {
  charged_.reset();
  if (counted_ != nullptr) counted_->Leave(0, 0, Clock::Real().Now());
  counted_.reset();
  body_.reset();
  body_begin_ = 0;
}

std::string_view Connection::unwritten() const {
  if (out_begin_ < out_.size()) return std::string_view(out_).substr(out_begin_);
  return body_ == nullptr ? std::string_view() : body_->From(body_begin_);
}

// False: the socket takes no more for now (OnWritable goes on), it is another's turn (OnWake goes
// on), or the socket is dead.
bool Connection::Flush() {
  for (std::string_view rest = unwritten(); !rest.empty(); rest = unwritten()) {
    if (turn_ == kTurnBytes) return WriteNextTurn();
    error_code error;
    const size_t most = std::min(rest.size(), kTurnBytes - turn_);
    const size_t written = socket_.write_some(net::buffer(rest.data(), most), error);
    turn_ += written;
    (out_begin_ < out_.size() ? out_begin_ : body_begin_) += written;
    sent_ += written;
    sent_bytes_ += written;
    if (error == net::error::would_block) return WaitWritable();
    if (error) {
      Close();
      return false;
    }
  }
  // A part that the answer still holds goes on waiting, in the time that its client has had.
  const bool waited = charged_ != nullptr || counted_ != nullptr || body_ != nullptr;
  if (waited && (answer_ == nullptr || answer_->held_bytes() == 0)) EndWaiting();
  out_begin_ = 0;
  if (out_.capacity() > kLargeBytes) out_ = std::string();
  out_.clear();
  return true;
}

// Charges what waits and counts what was taken. False: there is no memory for it, and the
// connection is closed.
bool Connection::KeepWaiting() {
  if (!ChargeWaiting()) {
    Close("answer_memory");
    return false;
  }
  NoteTaken();
  return true;
}

bool Connection::WaitWritable() {
  if (!KeepWaiting()) return false;
  SetDeadline(limits().write_timeout);
  waiting_write_ = true;
  socket_.async_wait(Transport::wait_write, [self = shared_from_this()](const error_code& failed) {
    self->waiting_write_ = false;
    if (failed) return self->Close();
    self->OnWritable();
  });
  return false;
}

bool Connection::WriteNextTurn() {
  if (!KeepWaiting()) return false;
  deadline_.reset();  // the client has just taken some
  MakeWake()();
  return false;
}

void Connection::OnWritable() {
  turn_ = 0;
  Advance();
  Feed();
}

}  // namespace millrace
