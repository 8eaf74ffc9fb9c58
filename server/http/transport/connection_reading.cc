// Connection's second half: reads requests.
#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http/error.hpp>
#include <memory>
#include <utility>
#include <variant>

#include "base/log.h"
#include "base/strings.h"
#include "engine/request/request_id.h"
#include "engine/request/tenant.h"
#include "server/guard/listen.h"
#include "server/http/json/api_error.h"
#include "server/http/transport/connection.h"
#include "server/tls/client_hello.h"

namespace millrace {
namespace {

namespace net = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr Logger kLog(LogComponent::kHttp);

// In this time, in seconds, a body that has place need not have begun to come.
constexpr double kPlaceGrace = 1;

// After a beginning that is no HTTP so many bytes are read away at most: no body follows.
constexpr size_t kReadAwayAfterNonsense = 256 << 10;

}  // namespace

// ---- Reading ----

void Connection::WaitReadable() {
  if (waiting_read_ || phase_ == Phase::kClosed || in_.size() == in_.max_size()) return;
  if (place_wanted_) return;
  waiting_read_ = true;
  socket_.async_wait(Transport::wait_read, [self = shared_from_this()](const error_code& error) {
    self->waiting_read_ = false;
    if (error) return self->Close();
    self->OnReadable();
  });
}

void Connection::OnReadable() {
  if (phase_ == Phase::kClosed || place_wanted_) return;
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
  while (phase_ <= Phase::kBody && in_.size() > 0 && !place_wanted_) {
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
    if (phase_ == Phase::kHead && error != http::error::header_limit &&
        error != http::error::bad_version) {
      read_away_ =
          std::max(limits().read_away_bytes, kReadAwayAfterNonsense) - kReadAwayAfterNonsense;
    }
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
  head_.identities = socket_.client_identities();
  if (const auto length = parser_->content_length()) head_.content_length = *length;
  if (auto response = state_.api.Check(head_)) {
    return Respond(*std::move(response), parser_->is_done() && message.keep_alive());
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
  return FindPlace(0) ? Continue() : WantPlace(body_began_);
}

// Tells a client that waits for it to send the body, unless the request was refused.
void Connection::Continue() {
  if (phase_ != Phase::kBody) return;
  const auto& message = parser_->get();
  // HTTP/1.0 has no Expect (RFC 9110, 10.1.1), and takes the first response for the last.
  if (message.version() >= 11 && message.count(http::field::expect) > 0 && !parser_->is_done() &&
      in_.size() == 0) {
    out_ = "HTTP/1.1 100 Continue\r\n\r\n";
    if (!Flush()) Close();  // the socket was empty: it is gone
  }
}

// Bodies are charged as they come. One that has come whole is about to be answered.
void Connection::OnBodyBytes() {
  const uint64_t bytes = parser_->get().body().size();
  if (bytes > state_.api.MaxBodyBytes(head_)) {
    return Refuse(HttpError(413, "body_too_large", "the body is too large"));
  }
  if (parser_->is_done() && !charge_) return;
  if (!charge_) charge_.emplace(state_.bodies);
  const SteadyTime now = std::chrono::steady_clock::now();
  if (charge_->evicted() || !charge_->Charge(bytes - charge_->bytes(), now)) return RefuseBody();
  if (!place_wanted_ && !parser_->is_done() && !FindPlace(bytes)) WantPlace(now);
}

void Connection::WantPlace(SteadyTime now) {
  place_wanted_ = now;
  ticket_.emplace(state_.waiting_bodies, Lane().id, MakeWake());
}

void Connection::EndWanting() {
  place_wanted_.reset();
  ticket_.reset();
}

// Returns whose turn it is when the request is read or worked on.
TenantShare Connection::Lane() const {
  return state_.TurnOf(state_.api.TenantOf(head_), AddressKey(socket_.peer().address()));
}

// Takes place for the whole of a body of which so much has come, if it is large. Returns false if
// there is none, or others of its lane came before. Bodies of less are parsed faster than they
// come, and need no place. A large one whose key's limits leave it no request is refused before it
// has come, and needs none.
bool Connection::FindPlace(uint64_t bytes) {
  const uint64_t all = head_.content_length.value_or(bytes);
  if (place_ || all <= limits().large_body_bytes) return true;
  const std::shared_ptr<const Tenant> tenant = state_.api.TenantOf(head_);
  if (tenant != nullptr) {
    const absl::Status enters = tenant->CheckEnter(state_.clock.Now());
    if (!enters.ok()) {
      Refuse(ErrorFromStatus(enters));
      return true;
    }
  }
  const uint32_t lane = Lane().id;
  if (ticket_ ? !ticket_->is_first() : state_.waiting_bodies.has_waiting(lane)) return false;
  place_.emplace(state_.large_bodies, StrCat(lane));
  // A body in chunks does not say how much it will be.
  const uint64_t most = head_.content_length.value_or(state_.api.MaxBodyBytes(head_));
  if (place_->Take(most).ok()) return true;
  place_.reset();
  return false;
}

void Connection::RefuseBody() {
  ApiError error = HttpError(503, "service_unavailable", "too many large requests are coming in");
  error.retry_after = absl::Seconds(1);
  Refuse(error);
}

void Connection::RefuseWork(const absl::Status& why) {
  ApiError error = HttpError(503, "service_unavailable", std::string(why.message()));
  error.retry_after = absl::Seconds(1);
  Refuse(error);
}

void Connection::CheckBody(SteadyTime now) {
  if (charge_ && charge_->evicted()) return RefuseBody();
  if (place_wanted_) {
    if (!FindPlace(parser_->get().body().size())) {
      if (now - *place_wanted_ > absl::ToChronoNanoseconds(limits().place_timeout)) RefuseBody();
      return;
    }
    if (phase_ != Phase::kBody) return;  // it was refused
    EndWanting();
    body_began_ = now;
    SetDeadline(limits().body_timeout);
    Continue();
    return Feed();
  }
  const double seconds = std::chrono::duration<double>(now - body_began_).count();
  const auto bytes = static_cast<double>(parser_->get().body().size());
  // Others wait for its place for so long at the most.
  const double most = absl::ToDoubleSeconds(limits().place_timeout);
  if (place_ && state_.waiting_bodies.size() > 0 &&
      bytes * most < (seconds - kPlaceGrace) * static_cast<double>(place_->bytes())) {
    return RefuseBody();
  }
  const double late = seconds - absl::ToDoubleSeconds(limits().body_grace);
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
  if (place_ && place_->bytes() > body.size()) place_->Give(place_->bytes() - body.size());
  const RequestCost cost = state_.api.CostOf(head_, body.size());
  if (cost == RequestCost::kSmall) {
    return OnHandled(state_.api.Handle(head_, body, MakeWake()));
  }
  HandleElsewhere(cost, std::move(body));
}

void Connection::HandleElsewhere(RequestCost cost, std::string body) {
  const TenantShare share = Lane();
  const size_t bytes = body.size();
  const absl::Status taken = state_.PoolFor(cost).Submit(
      share, bytes,
      [self = shared_from_this(), head = head_, body = std::move(body),
       wake = MakeWake()]() mutable {
        Handled handled;
        if (!self->closed_) handled = self->state_.api.Handle(head, body, wake);
        net::io_context& context = self->thread_.context();
        net::post(context, [self = std::move(self), handled = std::move(handled)]() mutable {
          self->OnHandled(std::move(handled));
        });
      });
  if (!taken.ok()) return RefuseWork(taken);
  charge_.reset();  // the pool counts it now, by tenant
}

void Connection::OnHandled(Handled handled) {
  charge_.reset();
  place_.reset();
  if (phase_ != Phase::kAnswer) return;  // the client left meanwhile
  if (auto* response = std::get_if<HttpResponse>(&handled)) {
    return Respond(std::move(*response), keep_alive_);
  }
  answer_ = std::get<std::unique_ptr<Answer>>(std::move(handled));
  Advance();
}

}  // namespace millrace
