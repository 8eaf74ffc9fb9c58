// Reader of zip archives whose entries are stored without compression, as torch.save writes them.
// Format: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
#ifndef MILLRACE_FORMATS_DISTRIBUTED_STORED_ZIP_H_
#define MILLRACE_FORMATS_DISTRIBUTED_STORED_ZIP_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace millrace {

// The entries of one archive; views into its bytes.
struct StoredZip {
  struct Entry {
    std::string_view name;
    absl::Span<const uint8_t> bytes;
  };

  // Reads the directory of an archive, which is all of `bytes`. INVALID_ARGUMENT for what is
  // damaged, or lies outside; UNIMPLEMENTED for entries that are compressed or encrypted. Messages
  // have no file's name. Checksums are not compared: torch.load does not, either.
  static absl::StatusOr<StoredZip> Read(absl::Span<const uint8_t> bytes);

  // Returns the entry of this name, below the folder that all of torch.save's entries are in; null
  // if there is none.
  const Entry* Find(std::string_view name) const;

  std::vector<Entry> entries;
};

}  // namespace millrace

#endif  // MILLRACE_FORMATS_DISTRIBUTED_STORED_ZIP_H_
