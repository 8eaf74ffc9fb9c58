// For tests in whose process both ends of a connection live: whether the other end has read what
// was sent to it.
#ifndef MILLRACE_BASE_UNREAD_TEST_UTIL_H_
#define MILLRACE_BASE_UNREAD_TEST_UTIL_H_

#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <string>
#include <thread>

namespace millrace {

inline bool IsSameAddress(const sockaddr_in& one, const sockaddr_in& other) {
  return one.sin_family == other.sin_family && one.sin_port == other.sin_port &&
         one.sin_addr.s_addr == other.sin_addr.s_addr;
}

// Returns how many bytes that were sent on `fd`, a TCP socket over IPv4, the other end has not
// read, wherever they are. 0 if the other end is closed.
inline size_t UnreadByPeer(int fd) {
  const auto address = [](int socket, auto* get) {
    sockaddr_in found{};
    socklen_t size = sizeof(found);
    if (get(socket, reinterpret_cast<sockaddr*>(&found), &size) != 0) found.sin_family = AF_UNSPEC;
    return found;
  };
  const sockaddr_in own = address(fd, getsockname), peer = address(fd, getpeername);
  int sending = 0;
  if (own.sin_family != AF_INET || ioctl(fd, SIOCOUTQ, &sending) != 0) return 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int other = std::stoi(entry.path().filename());
    int received = 0;
    if (IsSameAddress(address(other, getsockname), peer) &&
        IsSameAddress(address(other, getpeername), own) && ioctl(other, FIONREAD, &received) == 0) {
      return static_cast<size_t>(sending) + static_cast<size_t>(received);
    }
  }
  return 0;
}

// Waits, 20 s at most, until the other end has read all but `bytes` of what was sent.
inline bool WaitUntilRead(int fd, size_t bytes = 0) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (UnreadByPeer(fd) > bytes) {
    if (std::chrono::steady_clock::now() > give_up) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace millrace

#endif  // MILLRACE_BASE_UNREAD_TEST_UTIL_H_
