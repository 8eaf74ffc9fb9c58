// Tells whether a peer takes what was written to its socket.
#ifndef MILLRACE_SERVER_GUARD_SOCKET_PROGRESS_H_
#define MILLRACE_SERVER_GUARD_SOCKET_PROGRESS_H_

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <cstdint>

#include "base/clock.h"

namespace millrace {

// Written bytes lie in the kernel's buffer until the peer acknowledges them; a write that succeeded
// says nothing of the peer.
class SocketProgress {
 public:
  // Returns how many of the bytes `written` to `fd`, all there ever were, the peer has
  // acknowledged.
  static uint64_t Taken(int fd, uint64_t written) {
    int queued = 0;
    if (ioctl(fd, SIOCOUTQ, &queued) != 0) queued = 0;
    return written - static_cast<uint64_t>(queued);
  }

  // Returns whether bytes have lain in `fd`'s send buffer for `timeout` without the peer having
  // acknowledged one. `written`: all bytes ever written to it. Called now and then while the peer
  // has something to take.
  bool Stalled(int fd, uint64_t written, SteadyTime now, Duration timeout) {
    const uint64_t taken = Taken(fd, written);
    if (taken == written || taken != taken_ || since_ == SteadyTime()) {
      taken_ = taken;
      since_ = now;
    }
    return now - since_ > timeout;
  }

 private:
  uint64_t taken_ = 0;
  SteadyTime since_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_GUARD_SOCKET_PROGRESS_H_
