#include "server/http/connection.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http/error.hpp>
#include <limits>
#include <utility>
#include <variant>

#include "base/log.h"
#include "engine/metrics.h"
#include "engine/request_id.h"
#include "server/guard/listen.h"
#include "server/http/messages.h"

namespace millrace {
namespace {

namespace net = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

// A large answer's memory is given back when it is written.
constexpr size_t kKeptBytes = 64 << 10;

constexpr Logger kLog(LogComponent::kHttp);

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
  began_ = std::chrono::steady_clock::now();
  status_ = 0;
  reason_.clear();
  request_bytes_ = 0;
  sent_bytes_ = 0;
  SetDeadline(limits().idle_timeout);
}

// ---- Reading ----

void Connection::WaitReadable() {
  if (waiting_read_ || phase_ == Phase::kClosed || in_.size() == in_.max_size()) return;
  waiting_read_ = true;
  socket_.async_wait(Transport::wait_read, [self = shared_from_this()](const error_code& error) {
    self->waiting_read_ = false;
    if (error) return self->Close();
    self->OnReadable();
  });
}

void Connection::OnReadable() {
  if (phase_ == Phase::kClosed) return;
  error_code error;
  const size_t space = in_.max_size() - in_.size();
  const size_t read = socket_.read_some(net::buffer(thread_.input().data(), space), error);
  if (error && error != net::error::would_block) {  // its end included
    const bool failed = socket_.failure() != TransportFailure::kNone && phase_ == Phase::kIdle;
    return failed ? OnBadBeginning() : Close();
  }
  if (phase_ == Phase::kLinger) {  // what came is not wanted
    read_away_ += read;
    return read_away_ > limits().read_away_bytes ? Close() : WaitReadable();
  }
  in_.commit(net::buffer_copy(in_.prepare(read), net::buffer(thread_.input().data(), read)));
  Feed();
}

// A proxy without its header, or a client that speaks HTTP without TLS, is told so. One that does
// speak TLS has been told by an alert, and is given a moment to read it.
void Connection::OnBadBeginning() {
  if (socket_.failure() == TransportFailure::kPlaintext) {
    return Refuse(HttpError(400, "plaintext", "this port speaks TLS; use https://"));
  }
  if (socket_.failure() == TransportFailure::kProxyHeader) {
    return Refuse(
        HttpError(400, "proxy_header",
                  "connections of --trusted-proxies begin with a PROXY header of version 2"));
  }
  kLog.Debug("a TLS handshake failed: ", socket_.failure_text());
  state_.metrics.OnRefusal(socket_.failure() == TransportFailure::kClientCertificate
                               ? "client_certificate"
                               : "tls_handshake");
  Linger();
}

// Reads and answers requests for as long as they are there. Answers that are ready at once come
// back here (FinishResponse), so it must not call itself.
void Connection::Feed() {
  if (std::exchange(feeding_, true)) return;
  while (phase_ <= Phase::kBody && in_.size() > 0) {
    if (!FeedParser()) break;
  }
  feeding_ = false;
  if (in_.size() == 0) in_.shrink_to_fit();
  WaitReadable();
}

// False: more bytes are needed.
bool Connection::FeedParser() {
  if (phase_ == Phase::kIdle) {
    // RFC 9112, 2.2: empty lines before a request are to be ignored.
    const std::string_view text(static_cast<const char*>(in_.data().data()), in_.size());
    const size_t begin = text.find_first_not_of("\r\n");
    in_.consume(std::min(begin, in_.size()));
    if (in_.size() == 0) return false;
    if (*static_cast<const char*>(in_.data().data()) == kTlsHandshakeRecord) {
      Refuse(HttpError(400, "tls", "this port does not speak TLS; use http://"));
      return false;
    }
    phase_ = Phase::kHead;
    began_ = std::chrono::steady_clock::now();
    SetDeadline(limits().header_timeout);
  }
  error_code error;
  in_.consume(parser_->put(in_.data(), error));
  // A line that fills the buffer and does not end: a chunk's extensions, for example.
  if (error == http::error::need_more && in_.size() == in_.max_size())
    error = http::error::buffer_overflow;
  if (error && error != http::error::need_more) {
    Refuse(MalformedError(error));
    return false;
  }
  if (phase_ == Phase::kHead && parser_->is_header_done()) OnHead();
  if (phase_ == Phase::kBody) OnBodyBytes();
  if (phase_ == Phase::kBody && parser_->is_done()) OnRequest();
  return !error;
}

void Connection::OnHead() {
  const auto& message = parser_->get();
  const auto error = ReadHead(message, limits().header_fields, head_);
  if (error) return Refuse(*error);
  if (const auto length = parser_->content_length()) head_.content_length = *length;
  if (auto response = state_.api.Check(head_)) {
    return Respond(*response, parser_->is_done() && message.keep_alive());
  }
  if (spare_ && state_.full() && !state_.api.IsOpen(head_)) {
    ApiError busy = HttpError(503, "service_unavailable", "too many connections");
    busy.retry_after = absl::Seconds(1);
    return Refuse(busy);
  }
  spare_ = spare_ && state_.full();
  phase_ = Phase::kBody;
  body_began_ = std::chrono::steady_clock::now();
  SetDeadline(limits().body_timeout);
  parser_->eager(true);
  if (message.count(http::field::expect) > 0 && !parser_->is_done() && in_.size() == 0) {
    out_ = "HTTP/1.1 100 Continue\r\n\r\n";
    if (!Flush()) Close();  // the socket was empty: it is gone
  }
}

// Bodies are charged as they come. One that has come whole is about to be answered.
void Connection::OnBodyBytes() {
  const uint64_t bytes = parser_->get().body().size();
  if (bytes > state_.api.options().max_body_bytes) {
    return Refuse(HttpError(413, "body_too_large", "the body is too large"));
  }
  if (parser_->is_done() && !charge_) return;
  if (!charge_) charge_.emplace(state_.bodies);
  if (charge_->evicted() ||
      !charge_->Charge(bytes - charge_->bytes(), std::chrono::steady_clock::now())) {
    RefuseBody();
  }
}

void Connection::RefuseBody() {
  ApiError error = HttpError(503, "service_unavailable", "too many large requests are coming in");
  error.retry_after = absl::Seconds(1);
  Refuse(error);
}

void Connection::CheckBody(SteadyTime now) {
  if (charge_ && charge_->evicted()) return RefuseBody();
  const double late = std::chrono::duration<double>(now - body_began_).count() -
                      absl::ToDoubleSeconds(limits().body_grace);
  const auto bytes = static_cast<double>(parser_->get().body().size());
  if (bytes < late * limits().body_bytes_per_second) {
    Refuse(HttpError(408, "request_timeout",
                     StrCat("the body came too slowly; allowed: at least ",
                            limits().body_bytes_per_second, " bytes a second")));
  }
}

void Connection::OnRequest() {
  phase_ = Phase::kAnswer;
  deadline_.reset();
  quiet_since_ = std::chrono::steady_clock::now();
  keep_alive_ = parser_->get().keep_alive();
  std::string body = std::move(parser_->get().body());
  request_bytes_ = body.size();
  const RequestCost cost = state_.api.CostOf(head_, body.size());
  if (cost == RequestCost::kSmall) {
    return OnHandled(state_.api.Handle(head_, body, MakeWake()));
  }
  net::post(state_.PoolFor(cost), [self = shared_from_this(), head = head_, body = std::move(body),
                                   wake = MakeWake()]() mutable {
    Handled handled = self->state_.api.Handle(head, body, wake);
    net::io_context& context = self->thread_.context();
    net::post(context, [self = std::move(self), handled = std::move(handled)]() mutable {
      self->OnHandled(std::move(handled));
    });
  });
}

void Connection::OnHandled(Handled handled) {
  charge_.reset();
  if (phase_ != Phase::kAnswer) return;  // the client left meanwhile
  if (const auto* response = std::get_if<HttpResponse>(&handled)) {
    return Respond(*response, keep_alive_);
  }
  answer_ = std::get<std::unique_ptr<Answer>>(std::move(handled));
  Advance();
}

// ---- Answering ----

// The rest of the request is not read, so nothing can follow it.
void Connection::Refuse(const ApiError& error) {
  if (head_.request_id.empty()) head_.request_id = NewRequestId();
  parser_->get().body() = std::string();
  charge_.reset();
  HttpResponse refusal = ErrorResponse(error);
  ShapeError(head_.path, refusal);
  Respond(refusal, false);
}

void Connection::Respond(const HttpResponse& response, bool keep_alive) {
  phase_ = Phase::kAnswer;
  keep_alive_ = keep_alive && !state_.stopping && !state_.api.leaving();
  const bool bodiless = response.status == 204;
  AppendHead(response, bodiless ? Framing::kNone : Framing::kLength, response.body.size());
  if (head_.method != "HEAD") out_ += response.body;
  head_sent_ = true;
  done_ = true;
  answer_.reset();
  Advance();
}

void Connection::AppendHead(const HttpResponse& response, Framing framing, size_t length) {
  status_ = response.status;
  reason_ = response.reason;
  AppendResponseHead(out_, response, head_.request_id, framing, length, keep_alive_,
                     state_.api.cors().HeaderLines(head_));
}

void Connection::OnWake() {
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
    return head_sent_;
  }
  HttpResponse unused;
  const size_t opened = chunked_ ? OpenChunk(out_) : 0;
  const Answer::State state = answer_->Poll(unused, out_);
  if (chunked_) CloseChunk(out_, opened);
  drained_ = state == Answer::State::kPause;
  done_ = state == Answer::State::kEnd || state == Answer::State::kBroken;
  if (done_ && chunked_) out_ += kLastChunk;
  if (state == Answer::State::kBroken) {
    keep_alive_ = false;
    reason_ = "broken_stream";
  }
  return done_ || !out_.empty();
}

void Connection::ProduceFirst() {
  HttpResponse response;
  std::string body;
  const Answer::State state = answer_->Poll(response, body);
  if (state == Answer::State::kWaiting) return;
  if (state == Answer::State::kWhole) return Respond(response, keep_alive_);
  BeginBody(state, response, body);
}

void Connection::BeginBody(Answer::State state, const HttpResponse& response,
                           std::string_view body) {
  head_sent_ = true;
  chunked_ = parser_->get().version() >= 11;
  done_ = state != Answer::State::kChunk && state != Answer::State::kPause;
  keep_alive_ = keep_alive_ && chunked_ && state != Answer::State::kBroken && !state_.stopping &&
                !state_.api.leaving();
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

// False: the socket takes no more for now (OnWritable goes on), or is dead.
bool Connection::Flush() {
  while (out_begin_ < out_.size()) {
    error_code error;
    const size_t written =
        socket_.write_some(net::buffer(out_.data() + out_begin_, out_.size() - out_begin_), error);
    out_begin_ += written;
    sent_ += written;
    sent_bytes_ += written;
    if (error == net::error::would_block) {
      SetDeadline(limits().write_timeout);
      waiting_write_ = true;
      socket_.async_wait(Transport::wait_write,
                         [self = shared_from_this()](const error_code& failed) {
                           self->waiting_write_ = false;
                           if (failed) return self->Close();
                           self->OnWritable();
                         });
      return false;
    }
    if (error) {
      Close();
      return false;
    }
  }
  out_begin_ = 0;
  if (out_.capacity() > kKeptBytes) out_ = std::string();
  out_.clear();
  return true;
}

void Connection::OnWritable() {
  Advance();
  Feed();
}

void Connection::FinishResponse() {
  Record();
  answer_.reset();
  if (!keep_alive_ || state_.stopping) return Linger();
  BeginRequest();
  Feed();
}

void Connection::Record() {
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
                            .reason = reason_});
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
  if (phase_ == Phase::kBody) CheckBody(now);
  // What was written lies in the kernel's buffer until the client takes it.
  if (phase_ == Phase::kAnswer && now >= next_check_) {
    next_check_ = now + kProgressPeriod;
    if (progress_.Stalled(socket_.native_handle(), socket_.sent(), now,
                          absl::ToChronoNanoseconds(limits().write_timeout))) {
      return Close();
    }
  }
  if (answer_ && limits().ping_interval > absl::ZeroDuration()) PingIfQuiet(now);
  if (!deadline_ || now < *deadline_) return;
  if (phase_ == Phase::kHead || phase_ == Phase::kBody) {
    return Refuse(HttpError(408, "request_timeout", "the request did not come in time"));
  }
  if (socket_.is_beginning()) state_.metrics.OnRefusal("handshake_timeout");
  Close();
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

void Connection::Close() {
  if (phase_ == Phase::kClosed) return;
  const auto self = std::move(self_);  // until the end of this call
  if (phase_ == Phase::kAnswer) {
    // The client left, or took nothing any more. 499 is nginx's status for it.
    if (status_ == 0) status_ = 499;
    reason_ = "client_closed";
    Record();
  }
  phase_ = Phase::kClosed;
  deadline_.reset();
  answer_.reset();
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
