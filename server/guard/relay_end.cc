// The end of a stream or a connection, by the guard, a timeout or either side.
#include <array>
#include <boost/asio/buffer.hpp>
#include <utility>

#include "base/log.h"
#include "server/guard/refusals.h"
#include "server/guard/relay.h"
#include "server/tls/client_hello.h"

namespace millrace {
namespace {

namespace net = boost::asio;
using boost::system::error_code;

constexpr Logger kLog(LogComponent::kGrpc);

constexpr Duration kCheckPeriod = std::chrono::milliseconds(250);
// The server may take so long to end the frame that it is sending.
constexpr Duration kEndingTimeout = std::chrono::seconds(1);
// A client may send so many bytes after the last word.
constexpr size_t kMostReadAway = 256 << 10;

}  // namespace

// ---- What the guard decides ----

void Relay::SendResets() {
  const std::vector<FrameGuard::Reset> resets = guard_.TakeResets();
  if (resets.empty()) return;
  for (const FrameGuard::Reset& reset : resets) {
    kLog.Debug("reset stream ", reset.stream, " of ", peer().address().to_string(), ": ",
               GuardReasonName(reset.reason));
    host_.metrics().OnStreamReset(reset.reason);
    http2::AppendRstStream(in_.inject, reset.stream, http2::kCancel);
    http2::AppendRstStream(out_.inject, reset.stream, reset.code);
  }
  PumpServer();
}

void Relay::NoteActivity() {
  if (phase_ != Phase::kOpen) return;
  const size_t streams = guard_.streams();
  if (streams != open_streams_.load(std::memory_order_relaxed)) {
    open_streams_ = streams;
    if (host_.shared().streams > host_.shared().limits.all_streams) host_.MakeRoomForStreams();
  }
  const Activity now = !attached_    ? Activity::kHandshake
                       : streams > 0 ? Activity::kBusy
                                     : Activity::kIdle;
  if (now == activity_.load(std::memory_order_relaxed)) return;
  since_ = Clock::Real().Now().time_since_epoch().count();
  activity_ = now;
}

void Relay::OnViolation() {
  const FrameGuard::Violation violation = *guard_.violation();
  if (!attached_ && LooksLikeHttp1({in_.bytes.data(), in_.end})) {
    reason_ = GuardReason::kHttp1;
    return SendLast(Http1Refusal());
  }
  if (phase_ != Phase::kOpen) return;
  const bool is_tls = !attached_ && in_.end > 0 && in_.bytes[0] == kTlsHandshakeRecord;
  reason_ = is_tls ? GuardReason::kTls : violation.reason;
  kLog.Debug("closing the connection of ", peer().address().to_string(), ": ", violation.text);
  std::string last;
  if (!attached_) http2::AppendFrameHeader(last, {.type = http2::kSettings});
  http2::AppendGoAway(last, guard_.last_stream(), violation.code, violation.text);
  SendLast(last);
}

// A proxy without its header, or a client that speaks HTTP without TLS, is told so. One that does
// speak TLS has been told by an alert.
void Relay::OnBadBeginning() {
  kLog.Debug("closing the connection of ", peer().address().to_string(), ": ",
             client_.failure_text());
  switch (client_.failure()) {
    case TransportFailure::kProxyHeader:
      reason_ = GuardReason::kProxyHeader;
      return SendLast(NoProxyHeaderRefusal());
    case TransportFailure::kPlaintext:
      reason_ = GuardReason::kPlaintext;
      return SendLast(PlaintextRefusal());
    case TransportFailure::kClientCertificate:
      reason_ = GuardReason::kClientCertificate;
      return Linger();
    default:
      reason_ = GuardReason::kTlsHandshake;
      return Linger();
  }
}

// Writes a last word when the frame that is on its way to the client has ended.
void Relay::SendLast(std::string_view last) {
  out_.inject += last;
  phase_ = Phase::kEnding;
  deadline_ = Clock::Real().Now() + kEndingTimeout;
  PumpServer();
}

void Relay::End(GuardReason reason, std::string_view text) {
  if (phase_ != Phase::kOpen) return;
  if (client_.is_beginning()) return Abort(reason);  // nothing can be said yet
  reason_ = reason;
  std::string last;
  if (!attached_) http2::AppendFrameHeader(last, {.type = http2::kSettings});
  http2::AppendGoAway(last, guard_.last_stream(), http2::kEnhanceYourCalm, text);
  SendLast(last);
}

void Relay::AnnounceEnd() {
  // The first frame of a server must be its SETTINGS.
  if (phase_ != Phase::kOpen || sent_ == 0) return;
  http2::AppendGoAway(out_.inject, http2::kLargestStream, http2::kNoError,
                      "the server is shutting down");
  PumpServer();
}

void Relay::Tick(SteadyTime now) {
  const auto self = shared_from_this();
  if (phase_ == Phase::kEnding || phase_ == Phase::kLinger) {
    if (now > deadline_) Close();
    return;
  }
  if (phase_ == Phase::kClosed) return;
  const GuardLimits& limits = host_.shared().limits;
  if (!attached_) {
    if (now - began_ > limits.handshake_timeout || client_.gives_way(now)) {
      End(GuardReason::kHandshakeTimeout, "the connection did not begin in time");
    }
    return;
  }
  if (guard_.waiting()) PumpClient();
  if (now < next_check_ || phase_ != Phase::kOpen) return;
  next_check_ = now + kCheckPeriod;
  guard_.CheckTimes(now);
  if (guard_.violation()) return OnViolation();
  SendResets();
  if (!in_.inject.empty()) PumpClient();
  if (phase_ != Phase::kOpen) return;
  if (progress_.Stalled(client_.native_handle(), client_.sent(), now, limits.write_timeout)) {
    Abort(GuardReason::kWriteTimeout);
  }
}

// ---- The end ----

// The server has closed its end while the client still sends: acknowledgements, say. The server's
// last frames may wait in the pair or here, and PumpServer ends the connection once they are sent.
void Relay::OnServerGone() {
  server_gone_ = true;
  in_.begin = in_.checked = in_.end;
  in_.inject.clear();
}

void Relay::Abort(GuardReason reason) {
  if (phase_ == Phase::kClosed) return;
  if (!reason_) reason_ = reason;
  Close();
}

// Closing a socket with unread bytes in it would reset the connection, and the client might lose
// the GOAWAY: so the client is given a moment to read it and to close.
void Relay::Linger() {
  phase_ = Phase::kLinger;
  deadline_ = Clock::Real().Now() + host_.shared().limits.linger_timeout;
  error_code error;
  pair_.close(error);
  client_.shutdown(net::socket_base::shutdown_send, error);
  if (error) return Close();
  ReadAway();
}

void Relay::ReadAway() {
  std::array<char, 32 << 10> unwanted;
  error_code error;
  while (phase_ == Phase::kLinger && !in_.reading) {
    const size_t read = client_.read_some(net::buffer(unwanted), error);
    read_away_ += read;
    if (error == net::error::would_block) {
      in_.reading = true;
      client_.async_wait(Transport::wait_read, [self = shared_from_this()](const error_code&) {
        self->in_.reading = false;
        self->ReadAway();
      });
      return;
    }
    if (error || read_away_ > kMostReadAway) Close();
  }
}

void Relay::Close() {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  error_code ignored;
  pair_.close(ignored);
  client_.close(ignored);
  host_.metrics().OnClosed(reason());
  host_.OnEnded(*this);
}

}  // namespace millrace
