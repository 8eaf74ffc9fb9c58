#include "formats/files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "base/status.h"
#include "base/strings.h"
#include "formats/files/other_files.h"
#include "formats/files/shrunk_files.h"

namespace millrace {
namespace {

absl::Status SystemError(const std::string& base_name, const char* what, int error) {
  const std::string message = StrCat(base_name, ": ", what, ": ", std::strerror(error));
  return error == ENOENT ? absl::NotFoundError(message) : absl::InvalidArgumentError(message);
}

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  std::string base_name = path.substr(path.find_last_of('/') + 1);
  // O_NONBLOCK: opening a FIFO must not wait for its writer. It changes nothing for a real file.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return SystemError(base_name, "open", errno);
  struct stat info;
  void* address = MAP_FAILED;
  absl::Status status;
  if (fstat(fd, &info) != 0) {
    status = SystemError(base_name, "stat", errno);
  } else if (!S_ISREG(info.st_mode)) {
    status = absl::InvalidArgumentError(StrCat(base_name, ": not a regular file"));
  } else if (info.st_size == 0) {
    status = absl::InvalidArgumentError(StrCat(base_name, ": the file is empty"));
  } else {
    address = mmap(nullptr, info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (address == MAP_FAILED) {
      status = SystemError(base_name, "map", errno);
    } else {
      const auto size = static_cast<size_t>(info.st_size);
      status = Annotate(CheckNotPointer({static_cast<const uint8_t*>(address), size}), base_name);
      if (!status.ok()) munmap(address, size);
    }
  }
  if (!status.ok()) {
    close(fd);
    return status;
  }
  const absl::Span<const uint8_t> bytes(static_cast<const uint8_t*>(address),
                                        static_cast<size_t>(info.st_size));
  AddMapping(bytes, base_name);
  return MappedFile(std::move(base_name), fd, bytes);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : base_name_(std::move(other.base_name_)),
      fd_(std::exchange(other.fd_, -1)),
      bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(base_name_, other.base_name_);
  std::swap(fd_, other.fd_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (bytes_.empty()) return;  // moved from
  RemoveMapping(bytes_);
  munmap(const_cast<uint8_t*>(bytes_.data()), bytes_.size());
  close(fd_);
}

void MappedFile::DropPages(absl::Span<const uint8_t> range) const {
  if (range.empty()) return;
  // Rounded outward: the pages are clean, so dropping a neighbour's bytes costs a soft fault only.
  const uintptr_t page = sysconf(_SC_PAGESIZE);
  const uintptr_t begin = reinterpret_cast<uintptr_t>(range.data()) & ~(page - 1);
  const uintptr_t end = reinterpret_cast<uintptr_t>(range.data()) + range.size();
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace millrace
