// A file that is fetched in parts, some of which may be there from an earlier time.
#ifndef MILLRACE_HUB_PARTIAL_FILE_H_
#define MILLRACE_HUB_PARTIAL_FILE_H_

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace millrace {

// On disk: the file's bytes, holes where they are missing, and behind them how many bytes each part
// has. What a crash of the machine leaves may be wrong all the same: Verify says so. Parts may be
// written at the same time, each by one thread.
class PartialFile {
 public:
  // Goes on with what is at `path`, if it was begun for the same sizes, or begins. The last part
  // may be shorter than `part_bytes`, which is at least 1.
  static absl::StatusOr<std::unique_ptr<PartialFile>> Open(std::filesystem::path path,
                                                           int64_t bytes, int64_t part_bytes);
  // What a file at `path` takes of the disk already, its holes not counted; 0 if there is none.
  static int64_t BytesOnDisk(const std::filesystem::path& path);
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;
  ~PartialFile();

  int parts() const { return static_cast<int>(done_.size()); }
  // The bytes of a part that are missing: [first, second) of the file; empty when none are.
  std::pair<int64_t, int64_t> Missing(int part) const;
  int64_t missing_bytes() const;

  // The next bytes of a part, at most as many as are missing. RESOURCE_EXHAUSTED: the disk is full.
  absl::Status Append(int part, std::string_view bytes);

  // Forgets what is there, in one part for all.
  absl::Status Restart();

  // Whether the whole file has the contents that `etag` names: 64 hexadecimal digits are their
  // SHA-256, 40 their name as a blob of git's; other etags say nothing. DATA_LOSS: it has not.
  // CANCELLED: `stop` became true meanwhile.
  absl::Status Verify(const std::string& etag, const std::atomic<bool>& stop) const;

  // The whole file takes its place at `path`, on disk. Nothing else may be called after.
  absl::Status MoveTo(const std::filesystem::path& path);

 private:
  PartialFile(std::filesystem::path path, int fd, int64_t bytes, int64_t part_bytes);

  bool ReadTable();
  absl::Status WriteTable();
  absl::Status WriteDone(int part);
  absl::Status WriteAt(const void* data, size_t size, int64_t offset);

  const std::filesystem::path path_;
  const int fd_;
  const int64_t bytes_;
  int64_t part_bytes_;
  std::vector<int64_t> done_;     // by part
  std::vector<int64_t> written_;  // by part, what the table on disk says
};

}  // namespace millrace

#endif  // MILLRACE_HUB_PARTIAL_FILE_H_
