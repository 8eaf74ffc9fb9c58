#include "hub/cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <system_error>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/random_bits.h"
#include "base/regular_file.h"
#include "base/status.h"
#include "base/strings.h"
#include "hub/model_name.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr Logger kLog(LogComponent::kHub);
constexpr size_t kMaxRefBytes = 4096;
constexpr auto kLockPause = std::chrono::milliseconds(50);

std::string FolderName(const std::string& repository) {
  const size_t slash = repository.find('/');
  return StrCat("models--", repository.substr(0, slash), "--", repository.substr(slash + 1));
}

absl::Status CannotWrite(const fs::path& path, const std::string& why) {
  return absl::FailedPreconditionError(StrCat("hub: cannot write ", path.string(), ": ", why,
                                              "; HF_HOME or HF_HUB_CACHE names another folder"));
}

// Returns another name each time. In containers that share a cache, the number of the process does
// not tell writers apart: in each of them it may be 1.
fs::path TemporaryName(const fs::path& path) {
  return StrCat(path.string(), ".", RandomBits(), ".tmp");
}

absl::Status MakeFolder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  return error ? CannotWrite(folder, error.message()) : absl::OkStatus();
}

}  // namespace

std::optional<std::string> ReadCommit(const fs::path& path) {
  constexpr size_t kCommitSize = 40;
  absl::StatusOr<std::string> text = ReadRegularFile(path.string(), kMaxRefBytes);
  if (!text.ok() || text->size() < kCommitSize) return std::nullopt;
  text->resize(kCommitSize);
  return IsCommit(*text) ? std::optional(*std::move(text)) : std::nullopt;
}

HubCache::HubCache(const std::string& cache, const std::string& repository)
    : root_(fs::path(cache) / FolderName(repository)),
      locks_(fs::path(cache) / ".locks" / FolderName(repository)) {}

std::optional<std::string> HubCache::Commit(const std::string& revision) const {
  if (IsCommit(revision)) return revision;
  return ReadCommit(root_ / "refs" / revision);
}

absl::Status HubCache::WriteRef(const std::string& revision, const std::string& commit) const {
  if (Commit(revision) == commit) return absl::OkStatus();
  const fs::path path = root_ / "refs" / revision;
  MILLRACE_RETURN_IF_ERROR(MakeFolder(path.parent_path()));
  const fs::path temporary = TemporaryName(path);
  std::ofstream file(temporary);
  file << commit;
  file.close();
  std::error_code error;
  if (file) fs::rename(temporary, path, error);
  if (file && !error) return absl::OkStatus();
  std::error_code ignored;
  fs::remove(temporary, ignored);
  // Another process may have written the same.
  return Commit(revision) == commit ? absl::OkStatus() : CannotWrite(path, error.message());
}

fs::path HubCache::Snapshot(const std::string& commit) const {
  return root_ / "snapshots" / commit;
}

std::vector<std::string> HubCache::Files(const std::string& commit) const {
  std::vector<std::string> files;
  const fs::path snapshot = Snapshot(commit);
  std::error_code error;
  for (fs::recursive_directory_iterator entry(snapshot, error), end; !error && entry != end;
       entry.increment(error)) {
    std::string name = entry->path().lexically_relative(snapshot).string();
    if (Has(commit, name)) files.push_back(std::move(name));
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool HubCache::Has(const std::string& commit, const std::string& file) const {
  std::error_code error;
  return fs::is_regular_file(Snapshot(commit) / file, error);
}

bool HubCache::IsAbsent(const std::string& commit, const std::string& file) const {
  std::error_code error;
  return fs::exists(root_ / ".no_exist" / commit / file, error);
}

void HubCache::NoteAbsent(const std::string& commit, const std::string& file) const {
  if (IsAbsent(commit, file)) return;
  const fs::path path = root_ / ".no_exist" / commit / file;
  std::error_code ignored;
  fs::create_directories(path.parent_path(), ignored);
  std::ofstream note(path);
}

absl::Status HubCache::Link(const std::string& commit, const std::string& file,
                            const std::string& etag) const {
  const fs::path path = Snapshot(commit) / file;
  MILLRACE_RETURN_IF_ERROR(MakeFolder(path.parent_path()));
  const fs::path target = Blob(etag).lexically_relative(path.parent_path());
  // Another process may do the same concurrently; either one's link is valid.
  const fs::path temporary = TemporaryName(path);
  std::error_code error;
  fs::create_symlink(target, temporary, error);
  if (!error) fs::rename(temporary, path, error);
  if (!error) return absl::OkStatus();
  std::error_code ignored;
  fs::remove(temporary, ignored);
  return Has(commit, file) ? absl::OkStatus() : CannotWrite(path, error.message());
}

fs::path HubCache::Blob(const std::string& etag) const { return root_ / "blobs" / etag; }

bool HubCache::HasBlob(const std::string& etag, int64_t bytes) const {
  std::error_code error;
  const uintmax_t size = fs::file_size(Blob(etag), error);
  return !error && size == static_cast<uintmax_t>(bytes);
}

std::vector<fs::path> HubCache::Incomplete() const {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator entry(root_ / "blobs", error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() == ".incomplete") files.push_back(entry->path());
  }
  return files;
}

fs::path HubCache::Lock(const std::string& etag) const { return locks_ / StrCat(etag, ".lock"); }

absl::StatusOr<FileLock> FileLock::Take(const fs::path& path, const std::atomic<bool>& stop) {
  MILLRACE_RETURN_IF_ERROR(MakeFolder(path.parent_path()));
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return CannotWrite(path, std::strerror(errno));
  FileLock lock(fd);
  for (bool logged = false; flock(fd, LOCK_EX | LOCK_NB) != 0;) {
    if (errno != EWOULDBLOCK && errno != EINTR) return CannotWrite(path, std::strerror(errno));
    if (!std::exchange(logged, true)) {
      kLog.Info("another process is fetching the same file: waiting for it");
    }
    if (stop) return absl::CancelledError("stopped");
    std::this_thread::sleep_for(kLockPause);
  }
  return lock;
}

FileLock::FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileLock::~FileLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace millrace
