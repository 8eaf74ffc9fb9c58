// For tests in whose process both ends of a connection live: whether the other end has read what
// was sent to it.
#ifndef MILLRACE_SERVER_TLS_UNREAD_TEST_UTIL_H_
#define MILLRACE_SERVER_TLS_UNREAD_TEST_UTIL_H_

#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>

namespace millrace {

// Returns how many bytes that were sent on `fd`, a TCP socket over IPv4, the other end has not
// read, wherever they are. A connection that waits to be accepted has read nothing; one that the
// other end has closed will read no more: 0. The end of what is sent (shutdown) counts as a byte.
inline size_t UnreadByPeer(int fd) {
  const auto address = [fd](auto* get) {
    sockaddr_in found{};
    socklen_t size = sizeof(found);
    if (get(fd, reinterpret_cast<sockaddr*>(&found), &size) != 0) found.sin_family = AF_UNSPEC;
    return found;
  };
  const sockaddr_in own = address(getsockname), peer = address(getpeername);
  int sending = 0;
  if (own.sin_family != AF_INET || ioctl(fd, SIOCOUTQ, &sending) != 0) return 0;
  // The system lists the other end from its handshake on, with the bytes that it has received:
  // "sl: local:port remote:port state sent:received ...", all in hexadecimal.
  char ends[64];
  std::snprintf(ends, sizeof(ends), "%08X:%04X %08X:%04X", peer.sin_addr.s_addr,
                ntohs(peer.sin_port), own.sin_addr.s_addr, ntohs(own.sin_port));
  std::ifstream connections("/proc/self/net/tcp");
  std::string line;
  while (std::getline(connections, line)) {
    const size_t found = line.find(ends);
    if (found == std::string::npos) continue;
    unsigned state = 0, sent = 0, received = 0;
    const char* const rest = line.c_str() + found + std::string_view(ends).size();
    if (std::sscanf(rest, "%x %x:%x", &state, &sent, &received) != 3) continue;
    return static_cast<size_t>(sending) + received;
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

#endif  // MILLRACE_SERVER_TLS_UNREAD_TEST_UTIL_H_
