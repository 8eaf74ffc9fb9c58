#include "server/health.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

// The server's answers are shorter. More is not read.
constexpr size_t kMostBytes = 16 << 10;

// A server with TLS says this to plain HTTP. It may ask clients for a
// certificate too: its administration's port, which is plain, is asked instead.
constexpr std::string_view kSpeaksTls = "this port speaks TLS";
// A server that takes this machine for a proxy says this; the same holds.
constexpr std::string_view kWantsHeader = "a PROXY header of version 2";

// A non-blocking TCP connection whose calls end at a deadline.
class Connection {
 public:
  explicit Connection(SteadyTime deadline) : deadline_(deadline) {}
  ~Connection() {
    if (socket_ >= 0) close(socket_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  absl::Status Connect(const addrinfo& address) {
    socket_ = socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (socket_ < 0) return Failure(errno);
    if (connect(socket_, address.ai_addr, address.ai_addrlen) == 0) return absl::OkStatus();
    if (errno != EINPROGRESS) return Failure(errno);
    MILLRACE_RETURN_IF_ERROR(Wait(POLLOUT));
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(socket_, SOL_SOCKET, SO_ERROR, &error, &size);
    return error == 0 ? absl::OkStatus() : Failure(error);
  }

  absl::Status Send(std::string_view text) {
    while (!text.empty()) {
      MILLRACE_RETURN_IF_ERROR(Wait(POLLOUT));
      const ssize_t sent = send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) return Failure(errno);
      if (sent > 0) text.remove_prefix(static_cast<size_t>(sent));
    }
    return absl::OkStatus();
  }

  // Reads up to the end of the stream, or kMostBytes.
  absl::StatusOr<std::string> Read() {
    std::string text;
    while (text.size() < kMostBytes) {
      MILLRACE_RETURN_IF_ERROR(Wait(POLLIN));
      char buffer[4096];
      const ssize_t got = recv(socket_, buffer, sizeof(buffer), 0);
      if (got == 0) break;
      if (got < 0 && errno != EAGAIN && errno != EINTR) return Failure(errno);
      if (got > 0) text.append(buffer, static_cast<size_t>(got));
    }
    return text;
  }

 private:
  static absl::Status Failure(int error) { return absl::UnavailableError(std::strerror(error)); }

  absl::Status Wait(int16_t events) {
    while (true) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::Real().Now());
      if (left.count() <= 0) return absl::UnavailableError("no answer in time");
      pollfd waited = {.fd = socket_, .events = events, .revents = 0};
      const int ready = poll(&waited, 1, static_cast<int>(left.count()));
      if (ready > 0) return absl::OkStatus();
      if (ready < 0 && errno != EINTR) return Failure(errno);
    }
  }

  const SteadyTime deadline_;
  int socket_ = -1;
};

// Returns an address at which this machine reaches a server that listens on `host`.
std::string Reachable(const std::string& host) {
  if (host == "0.0.0.0" || host == "localhost") return "127.0.0.1";
  return host == "::" ? "::1" : host;
}

absl::StatusOr<std::string> Get(const std::string& host, int port, std::string_view path,
                                Duration timeout) {
  const addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
  addrinfo* address = nullptr;
  if (const int error = getaddrinfo(host.c_str(), StrCat(port).c_str(), &hints, &address)) {
    return absl::UnavailableError(gai_strerror(error));
  }
  Connection connection(Clock::Real().Now() + timeout);
  const absl::Status connected = connection.Connect(*address);
  freeaddrinfo(address);
  MILLRACE_RETURN_IF_ERROR(connected);
  MILLRACE_RETURN_IF_ERROR(connection.Send(
      StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")));
  return connection.Read();
}

std::string Url(const std::string& host, int port, std::string_view path) {
  const bool v6 = host.find(':') != host.npos;
  return StrCat("http://", v6 ? "[" : "", host, v6 ? "]" : "", ":", port, path);
}

}  // namespace

absl::Status AskForHealth(const Settings& settings) {
  const std::string_view path = settings.probe == Probe::kLive ? "/livez" : "/readyz";
  std::string url;
  const auto ask = [&](const std::string& host, int port) {
    url = Url(host, port, path);
    return Get(host, port, path, settings.probe_timeout);
  };
  absl::StatusOr<std::string> answer = ask(Reachable(settings.host), settings.http_port);
  // A container's loopback may have no IPv6. Who listens on :: takes IPv4, too.
  if (!answer.ok() && settings.host == "::") answer = ask("127.0.0.1", settings.http_port);
  if (answer.ok() &&
      (answer->find(kSpeaksTls) != answer->npos || answer->find(kWantsHeader) != answer->npos)) {
    answer = ask("127.0.0.1", settings.admin_port);
  }
  if (!answer.ok()) return Annotate(answer.status(), url);
  constexpr std::string_view kProtocol = "HTTP/1.1 ";
  if (!answer->starts_with(kProtocol)) {
    return absl::UnavailableError(StrCat(url, ": what answered does not speak HTTP"));
  }
  const std::string_view status = std::string_view(*answer).substr(kProtocol.size(), 3);
  if (status == "200") return absl::OkStatus();
  const size_t body = answer->find("\r\n\r\n");
  return absl::UnavailableError(StrCat(
      url, ": answered ", Printable(status), ": ",
      body == answer->npos ? "" : Printable(std::string_view(*answer).substr(body + 4), 300)));
}

}  // namespace millrace
