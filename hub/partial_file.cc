#include "hub/partial_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "absl/strings/escaping.h"
#include "base/sha1.h"
#include "base/sha256.h"
#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

// Head of the table. The count of bytes of each part follows it.
struct TableHead {
  char magic[8];
  int64_t part_bytes;
};
constexpr char kMagic[8] = {'m', 'i', 'l', 'l', 'p', 'a', 'r', 't'};
constexpr int64_t kCountEvery = 4 << 20;  // bytes of a part between updates of its count

absl::Status SystemError(const std::filesystem::path& path, const char* what) {
  const std::string message = StrCat("hub: ", path.string(), ": ", what, ": ", strerror(errno));
  return errno == ENOSPC || errno == EDQUOT ? absl::ResourceExhaustedError(message)
                                            : absl::FailedPreconditionError(message);
}

template <typename Digest>
std::string Hex(const Digest& digest) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), digest.size()});
}

}  // namespace

PartialFile::PartialFile(std::filesystem::path path, int fd, int64_t bytes, int64_t part_bytes)
    : path_(std::move(path)),
      fd_(fd),
      bytes_(bytes),
      part_bytes_(part_bytes),
      done_(static_cast<size_t>((bytes + part_bytes - 1) / part_bytes), 0),
      written_(done_) {}

PartialFile::~PartialFile() { close(fd_); }

absl::StatusOr<std::unique_ptr<PartialFile>> PartialFile::Open(std::filesystem::path path,
                                                               int64_t bytes, int64_t part_bytes) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return SystemError(path, "open");
  std::unique_ptr<PartialFile> file(new PartialFile(std::move(path), fd, bytes, part_bytes));
  if (!file->ReadTable()) MILLRACE_RETURN_IF_ERROR(file->WriteTable());
  return file;
}

int64_t PartialFile::BytesOnDisk(const std::filesystem::path& path) {
  constexpr int64_t kUnit = 512;  // unit of st_blocks on every file system
  struct stat info;
  return stat(path.c_str(), &info) == 0 ? int64_t{info.st_blocks} * kUnit : 0;
}

bool PartialFile::ReadTable() {
  const auto table_bytes = static_cast<int64_t>(sizeof(TableHead) + done_.size() * sizeof(int64_t));
  struct stat info;
  TableHead head;
  const bool same = fstat(fd_, &info) == 0 && info.st_size == bytes_ + table_bytes &&
                    pread(fd_, &head, sizeof(head), bytes_) == static_cast<ssize_t>(sizeof(head)) &&
                    std::memcmp(head.magic, kMagic, sizeof(kMagic)) == 0 &&
                    head.part_bytes == part_bytes_;
  const auto counts_bytes = static_cast<ssize_t>(done_.size() * sizeof(int64_t));
  const int64_t counts_at = bytes_ + static_cast<int64_t>(sizeof(head));
  if (!same || pread(fd_, done_.data(), counts_bytes, counts_at) != counts_bytes) return false;
  for (int part = 0; part < parts(); ++part) {
    const int64_t begin = part * part_bytes_;
    const int64_t size = std::min(part_bytes_, bytes_ - begin);
    if (done_[part] < 0 || done_[part] > size) return false;
  }
  written_ = done_;
  return true;
}

absl::Status PartialFile::WriteTable() {
  std::fill(done_.begin(), done_.end(), 0);
  written_ = done_;
  // Discards all old data.
  if (ftruncate(fd_, 0) != 0) return SystemError(path_, "truncate");
  TableHead head;
  std::memcpy(head.magic, kMagic, sizeof(kMagic));
  head.part_bytes = part_bytes_;
  MILLRACE_RETURN_IF_ERROR(WriteAt(&head, sizeof(head), bytes_));
  return WriteAt(done_.data(), done_.size() * sizeof(int64_t),
                 bytes_ + static_cast<int64_t>(sizeof(head)));
}

absl::Status PartialFile::WriteDone(int part) {
  written_[part] = done_[part];
  return WriteAt(&done_[part], sizeof(int64_t),
                 bytes_ + static_cast<int64_t>(sizeof(TableHead) + part * sizeof(int64_t)));
}

absl::Status PartialFile::WriteAt(const void* data, size_t size, int64_t offset) {
  const auto* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t wrote = pwrite(fd_, bytes, size, offset);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return SystemError(path_, "write");
    bytes += wrote;
    size -= static_cast<size_t>(wrote);
    offset += wrote;
  }
  return absl::OkStatus();
}

std::pair<int64_t, int64_t> PartialFile::Missing(int part) const {
  const int64_t begin = part * part_bytes_;
  return {begin + done_[part], std::min(begin + part_bytes_, bytes_)};
}

int64_t PartialFile::missing_bytes() const {
  int64_t missing = bytes_;
  for (const int64_t done : done_) missing -= done;
  return missing;
}

absl::Status PartialFile::Append(int part, std::string_view bytes) {
  const auto [begin, end] = Missing(part);
  if (static_cast<int64_t>(bytes.size()) > end - begin) {
    return absl::InternalError("hub: a part has more bytes than it may");
  }
  MILLRACE_RETURN_IF_ERROR(WriteAt(bytes.data(), bytes.size(), begin));
  done_[part] += static_cast<int64_t>(bytes.size());
  const bool whole = begin + static_cast<int64_t>(bytes.size()) == end;
  if (!whole && done_[part] - written_[part] < kCountEvery) return absl::OkStatus();
  return WriteDone(part);
}

absl::Status PartialFile::Restart() {
  part_bytes_ = std::max<int64_t>(bytes_, 1);
  done_.resize(std::min<size_t>(done_.size(), 1));
  return WriteTable();
}

absl::Status PartialFile::Verify(const std::string& etag, const std::atomic<bool>& stop) const {
  if (etag.find_first_not_of("0123456789abcdef") != etag.npos ||
      (etag.size() != 40 && etag.size() != 64)) {
    return absl::OkStatus();
  }
  Sha256 sha256;
  Sha1 sha1;
  sha1.Update(StrCat("blob ", bytes_, std::string_view("\0", 1)));
  std::vector<char> buffer(1 << 20);
  for (int64_t at = 0; at < bytes_;) {
    if (stop) return absl::CancelledError("stopped");
    const auto wanted = std::min<int64_t>(static_cast<int64_t>(buffer.size()), bytes_ - at);
    const ssize_t got = pread(fd_, buffer.data(), static_cast<size_t>(wanted), at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return SystemError(path_, "read");
    const std::string_view piece(buffer.data(), static_cast<size_t>(got));
    etag.size() == 64 ? sha256.Update(piece) : sha1.Update(piece);
    at += got;
  }
  const std::string digest = etag.size() == 64 ? Hex(sha256.Finish()) : Hex(sha1.Finish());
  if (digest == etag) return absl::OkStatus();
  return absl::DataLossError(StrCat("the checksum is ", digest, ", the hub's is ", etag));
}

absl::Status PartialFile::MoveTo(const std::filesystem::path& path) {
  if (ftruncate(fd_, bytes_) != 0) return SystemError(path_, "truncate");
  if (fsync(fd_) != 0) return SystemError(path_, "sync");
  std::error_code error;
  std::filesystem::rename(path_, path, error);
  if (!error) return absl::OkStatus();
  return absl::FailedPreconditionError(StrCat("hub: ", path.string(), ": ", error.message()));
}

}  // namespace millrace
