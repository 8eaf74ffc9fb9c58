#include "server/guard/relay.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "server/guard/refusals.h"

namespace millrace {
namespace {

namespace net = boost::asio;
using boost::system::error_code;

constexpr Logger kLog(LogComponent::kGrpc);

// Small, so that a slow side soon holds up the other: at the most this waits in the pair.
constexpr int kPairBytes = 64 << 10;
constexpr Duration kCheckPeriod = std::chrono::milliseconds(250);
// For the server to end the frame that it is sending.
constexpr Duration kEndingTimeout = std::chrono::seconds(1);
// What a client may send after the last word.
constexpr size_t kMostReadAway = 256 << 10;

}  // namespace

Relay::Relay(net::ip::tcp::socket client, Context& context, BufferPool& buffers, RelayHost& host,
             uint64_t id)
    : client_(std::move(client), host.transport_rules(), TlsProtocol::kHttp2),
      pair_(context),
      context_(context),
      buffers_(buffers),
      host_(host),
      id_(id),
      guard_(host.shared()),
      began_(Clock::Real().Now()) {
  since_ = began_.time_since_epoch().count();
}

void Relay::Start() {
  client_.Start();
  PumpClient();
}

// ---- Moving bytes ----

void Relay::Compact(Pipe& pipe) {
  if (pipe.begin == pipe.end) {
    if (!pipe.bytes.empty()) buffers_.Give(std::move(pipe.bytes));
    pipe.bytes = {};
    pipe.begin = pipe.checked = pipe.end = 0;
    return;
  }
  if (pipe.begin == 0) return;
  std::memmove(pipe.bytes.data(), pipe.bytes.data() + pipe.begin, pipe.end - pipe.begin);
  pipe.checked -= pipe.begin;
  pipe.end -= pipe.begin;
  pipe.begin = 0;
}

// Reads what is there; false if nothing is, and `pump` is then called when something is.
template <typename Socket>
bool Relay::Fill(Socket& from, Pipe& pipe, void (Relay::*pump)()) {
  if (pipe.reading || pipe.eof) return false;
  Compact(pipe);
  if (std::exchange(pipe.drained, false)) return WaitReadable(from, pipe, pump);
  if (pipe.bytes.empty()) pipe.bytes = buffers_.Take();
  // A header block that the guard wants to see whole.
  if (pipe.end == pipe.bytes.size()) pipe.bytes.resize(pipe.bytes.size() * 2);
  error_code error;
  const size_t space = pipe.bytes.size() - pipe.end;
  const size_t read = from.read_some(net::buffer(pipe.bytes.data() + pipe.end, space), error);
  pipe.end += read;
  pipe.drained = read > 0 && read < space;
  if (error && error != net::error::would_block) {
    pipe.eof = true;
    return true;
  }
  if (read > 0) return true;
  Compact(pipe);
  return WaitReadable(from, pipe, pump);
}

template <typename Socket>
bool Relay::WaitReadable(Socket& from, Pipe& pipe, void (Relay::*pump)()) {
  pipe.reading = true;
  from.async_wait(Socket::wait_read, [self = shared_from_this(), &pipe, pump](const error_code&) {
    pipe.reading = false;
    ((*self).*pump)();
  });
  return false;
}

// Writes what was checked, and then what the guard itself has to say if this is a place for it.
// False: the socket takes no more for now, or is dead.
template <typename Socket>
bool Relay::Flush(Pipe& pipe, Socket& to, void (Relay::*pump)(), uint64_t& written) {
  if (pipe.writing) return false;
  const bool boundary =
      &pipe == &in_ ? guard_.ClientAtBoundary() : guard_.ServerAtBoundary() || !attached_;
  while (pipe.begin < pipe.checked || (boundary && !pipe.inject.empty())) {
    const bool own = pipe.begin == pipe.checked;
    error_code error;
    const size_t sent =
        own ? to.write_some(net::buffer(pipe.inject), error)
            : to.write_some(net::buffer(pipe.bytes.data() + pipe.begin, pipe.checked - pipe.begin),
                            error);
    written += sent;
    if (own) {
      pipe.inject.erase(0, sent);
    } else {
      pipe.begin += sent;
    }
    if (!error) continue;
    if (error != net::error::would_block) {
      if (&pipe == &in_) {
        OnServerGone();
      } else {
        Close();
      }
      return false;
    }
    pipe.writing = true;
    to.async_wait(Socket::wait_write, [self = shared_from_this(), &pipe, pump](const error_code&) {
      pipe.writing = false;
      ((*self).*pump)();
    });
    return false;
  }
  return true;
}

void Relay::PumpClient() {
  if (std::exchange(pumping_client_, true)) return;
  while (phase_ == Phase::kOpen && StepClient()) {
  }
  pumping_client_ = false;
  if (phase_ == Phase::kLinger) ReadAway();
  NoteActivity();
}

bool Relay::StepClient() {
  if (server_gone_) return false;
  if (attached_ && !Flush(in_, pair_, &Relay::PumpClient, unneeded_)) return false;
  guard_.StopClientAtBoundary(!in_.inject.empty());
  const size_t passed = guard_.FromClient({in_.bytes.data() + in_.checked, in_.end - in_.checked},
                                          Clock::Real().Now());
  in_.checked += passed;
  if (guard_.violation()) {
    OnViolation();
    return false;
  }
  SendResets();
  if (!attached_ && guard_.greeted() && !Attach()) return false;
  if (attached_ && in_.begin < in_.checked) return true;
  if (!in_.inject.empty() && guard_.ClientAtBoundary()) return true;
  if (guard_.waiting()) return false;  // the server's answers or Tick go on
  if (in_.eof) {
    if (client_.failure() != TransportFailure::kNone) {
      OnBadBeginning();
    } else {
      Close();
    }
    return false;
  }
  return Fill(client_, in_, &Relay::PumpClient);
}

void Relay::PumpServer() {
  if (std::exchange(pumping_server_, true)) return;
  while (phase_ <= Phase::kEnding && StepServer()) {
  }
  pumping_server_ = false;
  NoteActivity();
  if (guard_.waiting()) PumpClient();
}

bool Relay::StepServer() {
  guard_.StopServerAtBoundary(!out_.inject.empty());
  out_.checked += guard_.FromServer({out_.bytes.data() + out_.checked, out_.end - out_.checked},
                                    Clock::Real().Now());
  const bool last = phase_ == Phase::kEnding && (!attached_ || guard_.ServerAtBoundary());
  if (!Flush(out_, client_, &Relay::PumpServer, sent_)) return false;
  if (last && out_.inject.empty()) {
    Linger();
    return false;
  }
  if (out_.eof) {
    Linger();
    return false;
  }
  if (out_.checked < out_.end) {
    const size_t passed = guard_.FromServer(
        {out_.bytes.data() + out_.checked, out_.end - out_.checked}, Clock::Real().Now());
    out_.checked += passed;
    if (passed > 0) return true;
  }
  return attached_ && Fill(pair_, out_, &Relay::PumpServer);
}

bool Relay::Attach() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    End(GuardReason::kConnections, "the server has no file descriptor left");
    return false;
  }
  for (const int end : ends) {
    setsockopt(end, SOL_SOCKET, SO_SNDBUF, &kPairBytes, sizeof(kPairBytes));
  }
  error_code error;
  pair_.assign(net::local::stream_protocol(), ends[0], error);
  if (!error) pair_.non_blocking(true, error);
  if (error || !host_.AttachServer(*this, ends[1])) {
    close(ends[1]);
    End(GuardReason::kShutdown, "the server is shutting down");
    return false;
  }
  attached_ = true;
  PumpServer();
  return phase_ == Phase::kOpen;
}

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
    if (now - began_ > limits.handshake_timeout) {
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
  std::array<char, 4096> unwanted;
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
