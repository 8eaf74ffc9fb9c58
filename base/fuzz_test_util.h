// Helpers of the fuzz targets (*_fuzz.cc): how they take their input apart, and how they fail.
#ifndef MILLRACE_BASE_FUZZ_TEST_UTIL_H_
#define MILLRACE_BASE_FUZZ_TEST_UTIL_H_

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace millrace {

// Ends the program, as a sanitizer does, unless `holds`: libFuzzer then keeps the input.
inline void FuzzCheck(bool holds, std::string_view what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz target: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

// An input that is taken apart from its front. An input that is used up gives zeros.
class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}

  uint8_t Byte() {
    if (rest_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    return byte;
  }
  // Takes everything before the next `mark`, and the mark itself.
  std::string_view Until(char mark) {
    const size_t end = std::min(rest_.find(mark), rest_.size());
    const std::string_view text = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    return text;
  }
  std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

// Numbers drawn from the input's own bytes: the same input gives the same numbers.
class FuzzRandom {
 public:
  explicit FuzzRandom(std::string_view seed) {
    for (const char c : seed) state_ = (state_ ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  }
  // Returns a number below `bound`, which is at least 1.
  size_t Below(size_t bound) {
    state_ = state_ * 6364136223846793005 + 1442695040888963407;
    return static_cast<size_t>(state_ >> 33) % bound;
  }

 private:
  uint64_t state_ = 0xcbf29ce484222325;
};

// A file in memory that the readers of files can open by its path.
class FuzzFile {
 public:
  FuzzFile() : fd_(memfd_create("fuzz", 0)), path_("/proc/self/fd/" + std::to_string(fd_)) {}
  FuzzFile(const FuzzFile&) = delete;
  FuzzFile& operator=(const FuzzFile&) = delete;
  ~FuzzFile() { close(fd_); }

  // Replaces what the file holds. No mapping of it may be in use.
  void Write(std::string_view bytes) {
    FuzzCheck(ftruncate(fd_, 0) == 0, "ftruncate failed");
    FuzzCheck(pwrite(fd_, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
              "pwrite failed");
  }
  const std::string& path() const { return path_; }

 private:
  int fd_;
  std::string path_;
};

}  // namespace millrace

#endif  // MILLRACE_BASE_FUZZ_TEST_UTIL_H_
