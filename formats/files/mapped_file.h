// A whole file mapped read-only into memory.
#ifndef MILLRACE_FORMATS_FILES_MAPPED_FILE_H_
#define MILLRACE_FORMATS_FILES_MAPPED_FILE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace millrace {

// Owns one private read-only mapping. Movable, not copyable; the bytes keep their address when the
// object moves. The file must not shrink while it is mapped: the kernel answers a read beyond the
// new end with SIGBUS, which no check at open can prevent.
class MappedFile {
 public:
  // Fails with NOT_FOUND or INVALID_ARGUMENT (not a regular file, empty, unreadable). The message
  // holds the file's base name only, never its folder.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  absl::Span<const uint8_t> bytes() const { return bytes_; }
  std::string_view text() const {
    return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
  }

  // For pread; open as long as the object lives.
  int fd() const { return fd_; }

  // Returns the last part of the path, for messages.
  const std::string& base_name() const { return base_name_; }

  // Gives the pages that hold `range` (a part of bytes()) back to the kernel. They leave this
  // process's resident memory at once; a later read takes them from the page cache again.
  void DropPages(absl::Span<const uint8_t> range) const;

 private:
  MappedFile(std::string base_name, int fd, absl::Span<const uint8_t> bytes)
      : base_name_(std::move(base_name)), fd_(fd), bytes_(bytes) {}

  std::string base_name_;
  int fd_;
  absl::Span<const uint8_t> bytes_;
};

}  // namespace millrace

#endif  // MILLRACE_FORMATS_FILES_MAPPED_FILE_H_
