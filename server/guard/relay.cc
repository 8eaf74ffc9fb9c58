#include "server/guard/relay.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <cstring>
#include <utility>

namespace millrace {
namespace {

namespace net = boost::asio;
using boost::system::error_code;

// Small, so that a slow side soon holds up the other: at the most this waits in the pair.
constexpr int kPairBytes = 64 << 10;

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

}  // namespace millrace
