#include "nodes/sockets.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/status.h"
#include "base/strings.h"

namespace millrace::nodes {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<AddressList> Lookup(const std::string& host, const std::string& port, int flags) {
  addrinfo hints{};
  hints.ai_flags = flags;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return absl::UnavailableError(StrCat(Printable(host), ": ", gai_strerror(error)));
  }
  return AddressList(found, &freeaddrinfo);
}

std::string AddressOf(const sockaddr* address, socklen_t size) {
  char text[NI_MAXHOST] = "?";
  (void)getnameinfo(address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return text;
}

int Milliseconds(Duration duration) {
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(duration).count());
}

void SetNoDelay(int fd) {
  const int on = 1;
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

absl::Status SocketError(std::string_view what, const std::string& address, int port) {
  const std::string message = StrCat(what, " ", WithPort(address, port), ": ", strerror(errno));
  return errno == EADDRNOTAVAIL ? absl::FailedPreconditionError(message)
                                : absl::UnavailableError(message);
}

}  // namespace

Socket::~Socket() {
  if (open()) close(fd_);
}

void Socket::Shutdown() const {
  if (open()) shutdown(fd_, SHUT_RDWR);
}

std::string WithPort(const std::string& address, int port) {
  const bool ipv6 = address.find(':') != std::string::npos;
  return StrCat(ipv6 ? "[" : "", address, ipv6 ? "]:" : ":", port);
}

absl::StatusOr<std::vector<std::string>> Resolve(const std::string& host) {
  MILLRACE_ASSIGN_OR_RETURN(const AddressList list, Lookup(host, "0", 0));
  std::vector<std::string> addresses;
  for (const addrinfo* info = list.get(); info != nullptr; info = info->ai_next) {
    std::string address = AddressOf(info->ai_addr, info->ai_addrlen);
    if (std::find(addresses.begin(), addresses.end(), address) == addresses.end()) {
      addresses.push_back(std::move(address));
    }
  }
  return addresses;
}

absl::StatusOr<Socket> Listen(const std::string& address, int port) {
  MILLRACE_ASSIGN_OR_RETURN(const AddressList list,
                            Lookup(address, StrCat(port), AI_NUMERICHOST | AI_PASSIVE));
  Socket listener(socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  // A port whose last connections have only just ended is free.
  (void)setsockopt(listener.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (!listener.open() || bind(listener.fd(), list->ai_addr, list->ai_addrlen) != 0 ||
      listen(listener.fd(), SOMAXCONN) != 0) {
    return SocketError("cannot listen on", address, port);
  }
  return listener;
}

absl::StatusOr<Socket> Connect(const std::string& address, int port, Duration timeout) {
  MILLRACE_ASSIGN_OR_RETURN(const AddressList list, Lookup(address, StrCat(port), AI_NUMERICHOST));
  Socket made(socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made.open()) return SocketError("cannot connect to", address, port);
  if (connect(made.fd(), list->ai_addr, list->ai_addrlen) != 0) {
    pollfd waiting{.fd = made.fd(), .events = POLLOUT, .revents = 0};
    if (errno != EINPROGRESS) return SocketError("cannot connect to", address, port);
    if (poll(&waiting, 1, Milliseconds(timeout)) != 1) {
      errno = ETIMEDOUT;
      return SocketError("cannot connect to", address, port);
    }
    int error = 0;
    socklen_t size = sizeof(error);
    (void)getsockopt(made.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
    errno = error;
    if (error != 0) return SocketError("cannot connect to", address, port);
  }
  (void)fcntl(made.fd(), F_SETFL, fcntl(made.fd(), F_GETFL) & ~O_NONBLOCK);
  SetNoDelay(made.fd());
  return made;
}

std::optional<Accepted> Accept(const Socket& listener, Duration wait) {
  pollfd waiting{.fd = listener.fd(), .events = POLLIN, .revents = 0};
  if (poll(&waiting, 1, Milliseconds(wait)) != 1) return std::nullopt;
  sockaddr_storage address;
  socklen_t size = sizeof(address);
  Socket socket(accept4(listener.fd(), reinterpret_cast<sockaddr*>(&address), &size, SOCK_CLOEXEC));
  if (!socket.open()) return std::nullopt;
  SetNoDelay(socket.fd());
  return Accepted{std::move(socket), AddressOf(reinterpret_cast<sockaddr*>(&address), size)};
}

void WaitReadable(const std::vector<const Socket*>& sockets, Duration wait) {
  std::vector<pollfd> waiting;
  for (const Socket* socket : sockets) {
    waiting.push_back({.fd = socket->fd(), .events = POLLIN, .revents = 0});
  }
  (void)poll(waiting.data(), waiting.size(), Milliseconds(wait));
}

std::optional<size_t> ReceiveSome(const Socket& socket, absl::Span<char> bytes) {
  const ssize_t received = recv(socket.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (received > 0) return received;
  if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return 0;
  return std::nullopt;
}

bool SendAll(const Socket& socket, absl::Span<const char> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    bytes.remove_prefix(sent);
  }
  return true;
}

bool ReceiveAll(const Socket& socket, absl::Span<char> bytes, std::optional<Duration> timeout) {
  const SteadyTime begin = Clock::Real().Now();
  while (!bytes.empty()) {
    if (timeout.has_value()) {
      const Duration left = begin + *timeout - Clock::Real().Now();
      pollfd waiting{.fd = socket.fd(), .events = POLLIN, .revents = 0};
      if (left <= Duration::zero() || poll(&waiting, 1, Milliseconds(left)) != 1) return false;
    }
    const ssize_t received = recv(socket.fd(), bytes.data(), bytes.size(), 0);
    if (received < 0 && errno == EINTR) continue;
    if (received <= 0) return false;
    bytes.remove_prefix(received);
  }
  return true;
}

}  // namespace millrace::nodes
