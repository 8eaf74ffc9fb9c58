// One model's place in the cache that Hugging Face's tools share:
//     models--org--name/blobs/ETAG            contents
//     models--org--name/refs/REVISION         holds the commit that a branch or tag stands for
//     models--org--name/snapshots/COMMIT/FILE links to a blob
//     models--org--name/.no_exist/COMMIT/FILE is empty: the hub has no such file
//     .locks/models--org--name/ETAG.lock      flock(2)ed while that blob is fetched
#ifndef MILLRACE_HUB_CACHE_H_
#define MILLRACE_HUB_CACHE_H_

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace millrace {

// Returns the commit that a file of refs/ holds, if it is one that can be read.
std::optional<std::string> ReadCommit(const std::filesystem::path& path);

// The caller has checked the names of files, revisions, commits and etags (model_name.h).
class HubCache {
 public:
  HubCache(const std::string& cache, const std::string& repository);

  // Returns the commit of `revision` as of the last query to the hub, if known.
  std::optional<std::string> Commit(const std::string& revision) const;
  // Stores the commit of `revision`. Does nothing for a revision that is itself a commit.
  absl::Status WriteRef(const std::string& revision, const std::string& commit) const;

  std::filesystem::path Snapshot(const std::string& commit) const;
  // Returns the sorted names of a snapshot's files.
  std::vector<std::string> Files(const std::string& commit) const;
  // Returns whether a snapshot has the complete file.
  bool Has(const std::string& commit, const std::string& file) const;
  // Returns whether it is noted that the hub has no such file.
  bool IsAbsent(const std::string& commit, const std::string& file) const;
  // Notes that. Does nothing in a cache that cannot be written: the note only saves a warning
  // (cached_snapshot.h).
  void NoteAbsent(const std::string& commit, const std::string& file) const;
  // Links a blob into a snapshot.
  absl::Status Link(const std::string& commit, const std::string& file,
                    const std::string& etag) const;

  std::filesystem::path Blob(const std::string& etag) const;
  bool HasBlob(const std::string& etag, int64_t bytes) const;
  // Returns the files that broken-off or running downloads, of whatever tool, have begun.
  std::vector<std::filesystem::path> Incomplete() const;

  std::filesystem::path Lock(const std::string& etag) const;

 private:
  std::filesystem::path root_;
  std::filesystem::path locks_;
};

// Holds an flock(2) on a file, which other processes may contend for, until it is destroyed.
class FileLock {
 public:
  // Creates the file and its folder and waits for the lock. Returns Cancelled if `stop` became true
  // while another process held it.
  static absl::StatusOr<FileLock> Take(const std::filesystem::path& path,
                                       const std::atomic<bool>& stop);
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace millrace

#endif  // MILLRACE_HUB_CACHE_H_
