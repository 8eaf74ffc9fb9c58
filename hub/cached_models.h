// Lists and removes the models of the local cache, which Hugging Face's tools share.
#ifndef MILLRACE_HUB_CACHED_MODELS_H_
#define MILLRACE_HUB_CACHED_MODELS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace millrace {

struct CachedModel {
  std::string name;      // as --model takes it: "org/name", or "org/name:FILE.gguf"
  std::string revision;  // as --revision takes it: a branch, a tag, or a commit; empty: these are
                         // files that downloads have begun, and of no revision yet
  uint64_t bytes;        // of its files
  int64_t used;          // when its files were last read or written, in Unix seconds; 0: unknown
  std::string missing;   // what it lacks to be served without a network; empty: nothing
};

// Returns the models of the cache by name, each revision and each GGUF model by itself, and what
// downloads of a repository have begun. Other folders are left out. FailedPrecondition: the
// environment names no cache.
absl::StatusOr<std::vector<CachedModel>> ListCachedModels();

// Removes a repository, "org/name", with all its revisions, or one GGUF model of it,
// "org/name:FILE.gguf" or "org/name:Q4_K_M", with all its parts, from each revision. Returns the
// bytes that the files took. InvalidArgument: not such a name, or a tag that several files have;
// NotFound: it is not in the cache; FailedPrecondition: another process fetches it, or a file
// cannot be removed.
absl::StatusOr<uint64_t> RemoveCachedModel(const std::string& name);

}  // namespace millrace

#endif  // MILLRACE_HUB_CACHED_MODELS_H_
