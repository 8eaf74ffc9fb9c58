// Finds a model in the cache without a request, and what the cache lacks of it.
#ifndef MILLRACE_HUB_CACHED_SNAPSHOT_H_
#define MILLRACE_HUB_CACHED_SNAPSHOT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "hub/cache.h"
#include "hub/hub.h"
#include "hub/selection.h"

namespace millrace {

struct CachedSnapshot {
  std::string commit;
  Selection selection;  // with the shards of an index
  // Optional files that are not in the cache, though the hub may have them: a tool that had no use
  // for them has filled it.
  std::vector<std::string> unknown;
};

// Finds what `revision` has for `content` in the cache; `wanted` is Select's. NOT_FOUND if a file
// that the model is known to need is missing, which the message names; other errors are Select's.
absl::StatusOr<CachedSnapshot> FindCached(const HubCache& cache, const std::string& revision,
                                          const std::string& wanted, HubContent content);

// Returns the weight files that the snapshot's index names. Returns FAILED_PRECONDITION if the
// index is malformed.
absl::StatusOr<std::vector<std::string>> ReadShards(const HubCache& cache,
                                                    const std::string& commit);

}  // namespace millrace

#endif  // MILLRACE_HUB_CACHED_SNAPSHOT_H_
