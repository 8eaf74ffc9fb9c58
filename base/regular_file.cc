#include "base/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "absl/status/status.h"
#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

constexpr size_t kPieceBytes = 64 << 10;

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  const int fd_;
};

absl::Status SystemError(int error) {
  const char* const reason = std::strerror(error);
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(reason);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(reason);
    default:
      return absl::UnavailableError(reason);
  }
}

std::string_view KindOf(mode_t mode) {
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

absl::Status CheckRegular(const struct stat& info, size_t most_bytes) {
  if (S_ISDIR(info.st_mode)) return absl::InvalidArgumentError(std::strerror(EISDIR));
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        StrCat("it is ", KindOf(info.st_mode), "; allowed: a regular file, or a link to one"));
  }
  if (info.st_size > 0 && static_cast<size_t>(info.st_size) > most_bytes) {
    return absl::OutOfRangeError(
        StrCat("it has ", info.st_size, " bytes; allowed: at most ", most_bytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ReadRegularFile(const std::string& path, size_t most_bytes) {
  struct stat info = {};
  // To open a device may have an effect, and to open a FIFO wakes who writes it.
  if (stat(path.c_str(), &info) != 0) return SystemError(errno);
  MILLRACE_RETURN_IF_ERROR(CheckRegular(info, most_bytes));
  // Another file may have taken its place since.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.get() < 0 || fstat(file.get(), &info) != 0) return SystemError(errno);
  MILLRACE_RETURN_IF_ERROR(CheckRegular(info, most_bytes));
  std::string text;
  while (true) {
    const size_t had = text.size();
    text.resize(had + std::min(kPieceBytes, most_bytes + 1 - had));
    const ssize_t got = read(file.get(), text.data() + had, text.size() - had);
    text.resize(had + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError(errno);
    if (got == 0) return text;
    if (text.size() > most_bytes) {
      return absl::OutOfRangeError(StrCat("it has more bytes than are allowed: ", most_bytes));
    }
  }
}

}  // namespace millrace
