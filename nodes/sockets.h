// TCP sockets between nodes, for what their ranks exchange in each step.
#ifndef MILLRACE_NODES_SOCKETS_H_
#define MILLRACE_NODES_SOCKETS_H_

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"

namespace millrace::nodes {

// An owned file descriptor of a socket.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();

  bool open() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  // Ends what is being read and written, by any thread, and all that follows.
  void Shutdown() const;

 private:
  int fd_ = -1;
};

// Addresses as text, without a port: "10.0.0.7", "::1".
absl::StatusOr<std::vector<std::string>> Resolve(const std::string& host);

// "10.0.0.7:29500", "[::1]:29500".
std::string WithPort(const std::string& address, int port);

// Listens on a numeric address. FailedPrecondition: it is no address of this host.
absl::StatusOr<Socket> Listen(const std::string& address, int port);
absl::StatusOr<Socket> Connect(const std::string& address, int port, Duration timeout);

struct Accepted {
  Socket socket;
  std::string peer;  // its address
};
// Waits for a connection, for `wait` at most.
std::optional<Accepted> Accept(const Socket& listener, Duration wait);

// Waits until one of them has something to read, or a connection to accept; for `wait` at most.
void WaitReadable(const std::vector<const Socket*>& sockets, Duration wait);

// Takes what has come, without waiting. Returns how much; nothing: the connection has ended.
std::optional<size_t> ReceiveSome(const Socket& socket, absl::Span<char> bytes);

// Both return false if the connection has ended. With a timeout, if not all has come by then.
bool SendAll(const Socket& socket, absl::Span<const char> bytes);
bool ReceiveAll(const Socket& socket, absl::Span<char> bytes,
                std::optional<Duration> timeout = std::nullopt);

}  // namespace millrace::nodes

#endif  // MILLRACE_NODES_SOCKETS_H_
