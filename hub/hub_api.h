// Queries to the hub: a model's files, and their contents.
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
  std::vector<std::string> files;  // only safe names
};

struct HubFile {
  std::string name;
  std::string etag;
  int64_t bytes = 0;
};

// One model at the hub. `options` must outlive this. Used by one thread at a time.
//
// Error messages say what to do about them. Codes: NOT_FOUND (no such model, revision or file),
// PERMISSION_DENIED (a token is missing, or access to a gated model), UNAVAILABLE (the hub cannot
// be reached or fails, after `attempts`), FAILED_PRECONDITION (the endpoint is not a hub),
// CANCELLED.
class HubApi {
 public:
  HubApi(const HubOptions& options, std::string repository, std::string revision);

  // Asks for a revision: GET /api/models/ORG/NAME/revision/REVISION.
  absl::StatusOr<HubRevision> Revision(int attempts);
  // Asks for a file's size and etag: HEAD /ORG/NAME/resolve/COMMIT/FILE.
  absl::StatusOr<HubFile> File(const std::string& commit, const std::string& name);
  // Downloads the bytes [begin, end) of the file, GET of the same URL, and passes them to `sink`.
  // Returns ABORTED if the sink returned false.
  absl::Status Fetch(const std::string& commit, const std::string& name, int64_t begin, int64_t end,
                     HttpClient::Sink sink);

 private:
  // Sends a request once and maps the response's status to an error.
  absl::StatusOr<HttpReply> SendOnce(const HttpRequest& request, HttpClient::Sink sink);
  absl::Status Refusal(const HttpReply& response) const;
  std::string ResolveUrl(const std::string& commit, const std::string& name) const;

  const HubOptions& options_;
  const std::string repository_;
  const std::string revision_;
  HttpClient client_;
};

// Calls `once` until it succeeds, fails with another code than UNAVAILABLE, or has failed
// `attempts` times. Pauses between attempts grow, or are as long as the hub requests (Retry-After).
absl::Status WithAttempts(const HubOptions& options, int attempts,
                          absl::FunctionRef<absl::Status()> once);

}  // namespace millrace

#endif  // MILLRACE_HUB_HUB_API_H_
