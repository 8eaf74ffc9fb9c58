// Buffers for the bytes that relays hold.
#ifndef MILLRACE_SERVER_GUARD_BUFFER_POOL_H_
#define MILLRACE_SERVER_GUARD_BUFFER_POOL_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace millrace {

// Buffers that the relays of a thread share: a connection holds one only while it has bytes to
// keep.
class BufferPool {
 public:
  static constexpr size_t kBytes = 16 << 10;

  std::vector<uint8_t> Take() {
    if (free_.empty()) return std::vector<uint8_t>(kBytes);
    std::vector<uint8_t> buffer = std::move(free_.back());
    free_.pop_back();
    return buffer;
  }

  void Give(std::vector<uint8_t> buffer) {
    if (buffer.size() == kBytes && free_.size() < kKept) free_.push_back(std::move(buffer));
  }

 private:
  static constexpr size_t kKept = 64;

  std::vector<std::vector<uint8_t>> free_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_GUARD_BUFFER_POOL_H_
