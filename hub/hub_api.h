// What the hub is asked: which files a model has, and where each one's bytes are.
#ifndef MILLRACE_HUB_HUB_API_H_
#define MILLRACE_HUB_HUB_API_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hub/http_client.h"
#include "hub/options.h"

namespace millrace {

struct HubRevision {
  std::string commit;
  std::vector<std::string> files;  // safe names alone
};

struct HubFile {
  std::string name;
  std::string etag;
  int64_t bytes = 0;
};

// One model at the hub. `options` outlives this. One thread at a time.
//
// Errors say what to do about them: NOT_FOUND (no such model, revision or file), PERMISSION_DENIED
// (a token is missing, or access to a gated model), UNAVAILABLE (the hub cannot be reached, or is
// not well, after `attempts`), FAILED_PRECONDITION (what answers is no hub), CANCELLED.
class HubApi {
 public:
  HubApi(const HubOptions& options, std::string repository, std::string revision);

  // GET /api/models/ORG/NAME/revision/REVISION
  absl::StatusOr<HubRevision> Revision(int attempts);
  // HEAD /ORG/NAME/resolve/COMMIT/FILE
  absl::StatusOr<HubFile> File(const std::string& commit, const std::string& name);
  // GET of the same: gives `sink` the bytes [begin, end). ABORTED: the sink had enough.
  absl::Status Fetch(const std::string& commit, const std::string& name, int64_t begin, int64_t end,
                     HttpClient::Sink sink);

 private:
  // Sends once, and tells what the answer's status means.
  absl::StatusOr<HttpReply> Ask(const HttpRequest& request, HttpClient::Sink sink);
  absl::Status Refusal(const HttpReply& response) const;
  std::string ResolveUrl(const std::string& commit, const std::string& name) const;

  const HubOptions& options_;
  const std::string repository_;
  const std::string revision_;
  HttpClient client_;
};

// Calls `once` until it succeeds, fails for good or has failed `attempts` times as UNAVAILABLE,
// with longer and longer pauses between, or those that the hub asked for (Retry-After).
absl::Status WithAttempts(const HubOptions& options, int attempts,
                          absl::FunctionRef<absl::Status()> once);

}  // namespace millrace

#endif  // MILLRACE_HUB_HUB_API_H_
