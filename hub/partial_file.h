// A file that is downloaded in parts, and resumed if some parts are already on disk.
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

// The file on disk consists of the data, with holes for missing bytes, followed by a table of the
// bytes present in each part. After a machine crash the data may still be wrong, which Verify
// detects. Different threads may write different parts concurrently.
class PartialFile {
 public:
  // Resumes the file at `path` if it was begun with the same sizes, otherwise starts a new one. The
  // last part may be shorter than `part_bytes`, which is at least 1.
  static absl::StatusOr<std::unique_ptr<PartialFile>> Open(std::filesystem::path path,
                                                           int64_t bytes, int64_t part_bytes);
  // Returns the disk space already allocated to the file at `path`, without its holes; 0 if there
  // is none.
  static int64_t BytesOnDisk(const std::filesystem::path& path);
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;
  ~PartialFile();

  int parts() const { return static_cast<int>(done_.size()); }
  // Returns the missing bytes of a part as the range [first, second) of the file; it is empty if
  // none are.
  std::pair<int64_t, int64_t> Missing(int part) const;
  int64_t missing_bytes() const;

  // Appends bytes to a part, at most as many as are missing. Returns RESOURCE_EXHAUSTED if the disk
  // is full.
  absl::Status Append(int part, std::string_view bytes);

  // Discards all data. The file then consists of a single part.
  absl::Status Restart();

  // Checks the complete file's contents against `etag`: 64 hexadecimal digits are a SHA-256, 40 the
  // git blob hash; other etags cannot be checked and pass. Returns DATA_LOSS on a mismatch, and
  // CANCELLED if `stop` becomes true meanwhile.
  absl::Status Verify(const std::string& etag, const std::atomic<bool>& stop) const;

  // Moves the complete file to `path` and syncs it to disk. Nothing else may be called afterwards.
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
  std::vector<int64_t> written_;  // by part, as stored in the table on disk
};

}  // namespace millrace

#endif  // MILLRACE_HUB_PARTIAL_FILE_H_
