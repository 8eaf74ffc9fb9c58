#include "server/http/transport/connection.h"

#include <boost/asio/buffer.hpp>
#include <utility>

#include "engine/metrics/metrics.h"
#include "engine/request/request_id.h"
#include "server/guard/listen.h"

namespace millrace {
namespace {

namespace net = boost::asio;
using boost::system::error_code;

constexpr std::chrono::seconds kProgressPeriod(1);

}  // namespace

Connection::Connection(net::ip::tcp::socket socket, IoThread& thread, ServerState& state,
                       bool spare)
    : socket_(std::move(socket), state.transport_rules, TlsProtocol::kHttp1),
      thread_(thread),
      state_(state),
      spare_(spare) {
  state_.api.frontend().metrics().OnHttpConnectionOpened();
}

Connection::~Connection() {
  state_.api.frontend().metrics().OnHttpConnectionClosed();
  if (phase_ == Phase::kClosed) --state_.closed;
  --state_.connections;
}

void Connection::Start() {
  socket_.Start();
  wake_slot_ = std::make_shared<WakeSlot>();
  wake_slot_->connection = weak_from_this();
  self_ = shared_from_this();
  thread_.Add(this);
  BeginRequest();
  SetDeadline(limits().header_timeout);
  WaitReadable();
  if (state_.stopping) Close();
}

void Connection::BeginRequest() {
  phase_ = Phase::kIdle;
  parser_.emplace();
  parser_->header_limit(static_cast<std::uint32_t>(limits().header_bytes));
  parser_->body_limit(boost::none);  // ours: see OnHead and OnBodyBytes
  head_ = HttpRequestHead();
  head_sent_ = false;
  done_ = false;
  turn_ = 0;
  began_ = std::chrono::steady_clock::now();
  status_ = 0;
  reason_.clear();
  param_.clear();
  tokens_.reset();
  request_bytes_ = 0;
  sent_bytes_ = 0;
  SetDeadline(limits().idle_timeout);
}

// ---- Answering ----

// The rest of the request is not read, so nothing can follow it.
void Connection::Refuse(const ApiError& error) {
  if (head_.request_id.empty()) head_.request_id = NewRequestId();
  parser_->get().body() = std::string();
  charge_.reset();
  place_.reset();
  EndWanting();
  HttpResponse refusal = ErrorResponse(error);
  state_.api.ShapeError(head_.path, refusal);
  Respond(std::move(refusal), false);
}

void Connection::AppendHead(const HttpResponse& response, Framing framing, size_t length) {
  status_ = response.status;
  reason_ = response.reason;
  param_ = response.param;
  tokens_ = response.tokens;
  AppendResponseHead(out_, response, head_.request_id, framing, length, keep_alive_,
                     state_.api.cors().HeaderLines(head_));
}

void Connection::OnWake() {
  if (charged_ != nullptr && charged_->evicted()) return Close("answer_memory");
  // The bodies of its lane that came before have their place.
  if (place_wanted_) return CheckBody(std::chrono::steady_clock::now());
  turn_ = 0;
  drained_ = false;
  Advance();
}

void Connection::Prefetch() const {
  __builtin_prefetch(&phase_);
  __builtin_prefetch(&sent_);
}

void Connection::PrefetchAnswer() const {
  __builtin_prefetch(answer_.get());
  __builtin_prefetch(out_.data());
}

// Writes what is there and asks for more, until the socket is full, nothing is ready, or all is
// said.
void Connection::Advance() {
  while (phase_ == Phase::kAnswer && !waiting_write_) {
    if (!Flush()) return;
    if (done_) return FinishResponse();
    if (!answer_ || std::exchange(drained_, false) || !Produce()) {
      deadline_.reset();
      return;
    }
  }
}

// False: nothing is ready.
bool Connection::Produce() {
  if (!head_sent_) {
    ProduceFirst();
    return head_sent_ || phase_ != Phase::kAnswer;  // a whole answer may be through already
  }
  HttpResponse unused;
  const size_t opened = chunked_ ? OpenChunk(out_) : 0;
  const Answer::State state = answer_->Poll(unused, out_);
  if (chunked_) CloseChunk(out_, opened);
  drained_ = state == Answer::State::kPause;
  done_ = state == Answer::State::kEnd || state == Answer::State::kBroken;
  if (done_ && chunked_) out_ += kLastChunk;
  if (state == Answer::State::kBroken) reason_ = "broken_stream";
  return done_ || !out_.empty();
}

void Connection::ProduceFirst() {
  HttpResponse response;
  std::string body;
  const Answer::State state = answer_->Poll(response, body);
  if (state == Answer::State::kWaiting) return;
  if (state == Answer::State::kWhole) return Respond(std::move(response), keep_alive_);
  BeginBody(state, response, body);
}

void Connection::BeginBody(Answer::State state, const HttpResponse& response,
                           std::string_view body) {
  head_sent_ = true;
  chunked_ = parser_->get().version() >= 11;
  done_ = state != Answer::State::kChunk && state != Answer::State::kPause;
  keep_alive_ = keep_alive_ && chunked_ && !state_.stopping && !state_.api.leaving();
  AppendHead(response, chunked_ ? Framing::kChunked : Framing::kClose, 0);
  if (state == Answer::State::kBroken) reason_ = "broken_stream";
  AppendBody(body);
  if (done_ && chunked_) out_ += kLastChunk;
}

void Connection::AppendBody(std::string_view body) {
  const size_t opened = chunked_ ? OpenChunk(out_) : 0;
  out_ += body;
  if (chunked_) CloseChunk(out_, opened);
}

void Connection::FinishResponse() {
  Record();
  answer_.reset();
  if (!keep_alive_ || state_.stopping) return Linger();
  BeginRequest();
  Feed();
}

void Connection::DropAnswer() {
  if (answer_ != nullptr && !tokens_.has_value()) tokens_ = answer_->tokens();
  answer_.reset();
}

void Connection::Record() {
  if (answer_ != nullptr && !tokens_.has_value()) tokens_ = answer_->tokens();
  const std::shared_ptr<const Tenant> tenant = state_.api.TenantOf(head_);
  const std::string from = socket_.is_proxied() ? PeerText(socket_.peer()) : "";
  const Api::Handler handler = state_.api.HandlerOf(head_);
  state_.metrics.OnRequest({.method = head_.method,
                            .path = head_.path,
                            .handler = handler.name,
                            .routine = handler.routine,
                            .status = status_,
                            .request_bytes = request_bytes_,
                            .response_bytes = sent_bytes_,
                            .took = std::chrono::steady_clock::now() - began_,
                            .request_id = head_.request_id,
                            .client = socket_.client_name(),
                            .from = from,
                            .tenant = TenantName(tenant),
                            .reason = reason_,
                            .param = param_,
                            .tokens = tokens_});
}

// Closing a socket with unread bytes in it would reset the connection, and the client might lose
// the answer: so the client is given a moment to read it and to close.
void Connection::Linger() {
  phase_ = Phase::kLinger;
  SetDeadline(limits().linger_timeout);
  in_.clear();
  error_code error;
  socket_.shutdown(net::socket_base::shutdown_send, error);
  if (error) return Close();
  WaitReadable();
}

// ---- Ending ----

void Connection::CheckDeadline(SteadyTime now) {
  const auto self = shared_from_this();  // what closes it may let go of it
  if (phase_ == Phase::kBody) CheckBody(now);
  // Written bytes lie in the kernel's buffer until the client takes it.
  if (phase_ == Phase::kAnswer && now >= next_check_) {
    next_check_ = now + kProgressPeriod;
    if (progress_.Stalled(socket_.native_handle(), socket_.sent(), now,
                          absl::ToChronoNanoseconds(limits().write_timeout))) {
      return Close("write_timeout");
    }
  }
  if (socket_.gives_way(now)) {
    state_.metrics.OnRefusal("handshake_timeout");
    return Close();
  }
  if (answer_ && !done_ && limits().ping_interval > absl::ZeroDuration()) PingIfQuiet(now);
  if (!deadline_ || now < *deadline_) return;
  if (phase_ == Phase::kHead || phase_ == Phase::kBody) {
    return Refuse(HttpError(408, "request_timeout", "the request did not come in time"));
  }
  if (socket_.is_beginning()) state_.metrics.OnRefusal("handshake_timeout");
  Close("write_timeout");
}

// A proxy would close a stream that is quiet for long, while its request waits in the queue, say.
void Connection::PingIfQuiet(SteadyTime now) {
  if (std::exchange(quiet_sent_, sent_) != sent_ || waiting_write_) quiet_since_ = now;
  if (now - quiet_since_ < absl::ToChronoNanoseconds(limits().ping_interval)) return;
  quiet_since_ = now;
  HttpResponse response;
  std::string body;
  if (!answer_->Ping(response, body)) return;
  if (head_sent_) {
    AppendBody(body);
  } else {
    BeginBody(Answer::State::kChunk, response, body);
  }
  Advance();
}

std::optional<Connection::SteadyTime> Connection::waiting_since() const {
  if (phase_ != Phase::kIdle && phase_ != Phase::kHead) return std::nullopt;
  return began_;
}

void Connection::Stop(WhichConnections which) {
  if (which == WhichConnections::kAll) return Close();
  if (phase_ != Phase::kIdle) return;
  error_code ignored;
  const bool expects_none = sent_ > 0 && socket_.available(ignored) == 0;
  if (which == WhichConnections::kIdle || expects_none) Close();
}

void Connection::Close(std::string_view reason) {
  if (phase_ == Phase::kClosed) return;
  const auto self = std::move(self_);  // until the end of this call
  if (phase_ == Phase::kAnswer) {
    // The client left, or took nothing any more. 499 is nginx's status for it.
    if (status_ == 0) status_ = 499;
    reason_ = reason;
    Record();
  }
  phase_ = Phase::kClosed;
  closed_ = true;
  ++state_.closed;
  deadline_.reset();
  answer_.reset();
  EndWaiting();
  EndWanting();
  out_ = std::string();
  out_begin_ = 0;
  thread_.Remove(this);
  error_code ignored;
  socket_.close(ignored);
}

void Connection::SetDeadline(absl::Duration after) {
  deadline_ = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(after);
}

Wake Connection::MakeWake() const {
  return [slot = wake_slot_, list = thread_.wakes()] {
    if (!slot->queued.exchange(true)) list->Push(slot);
  };
}

}  // namespace millrace
