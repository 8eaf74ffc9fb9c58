// The files of a model's tokenizer in one archive, for routers that tokenize by themselves.
#ifndef MILLRACE_SERVER_GRPC_TOKENIZER_ARCHIVE_H_
#define MILLRACE_SERVER_GRPC_TOKENIZER_ARCHIVE_H_

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace millrace {

// A named file. The name has no folder.
using ArchiveFile = std::pair<std::string, std::string>;

// Returns a ZIP archive of the files, not compressed (PKWARE's APPNOTE.TXT 6.3, sections 4.3.7,
// 4.3.12 and 4.3.16). The files have less than 4 GiB in all.
std::string MakeZip(const std::vector<ArchiveFile>& files);

struct TokenizerArchive {
  std::string zip;
  std::string sha256;  // of it, in hex
};

// Makes the archive when it is first asked for, and keeps it. Thread-safe.
class TokenizerArchives {
 public:
  // Returns the archive of a Hugging Face folder. FailedPrecondition: the tokenizer was read from
  // something else. Errors name no path.
  absl::StatusOr<std::shared_ptr<const TokenizerArchive>> Get(const std::string& path);

 private:
  std::mutex mutex_;
  std::string path_;                                 // guarded by mutex_, as the next
  std::shared_ptr<const TokenizerArchive> archive_;  // of `path_`
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_TOKENIZER_ARCHIVE_H_
