// An HTTP client over libcurl, for one request at a time.
#ifndef MILLRACE_HUB_HTTP_CLIENT_H_
#define MILLRACE_HUB_HTTP_CLIENT_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "base/clock.h"

namespace millrace {

struct HttpRequest {
  std::string url;  // http or https
  bool head = false;
  // A request with a body is a POST, and follows no redirect.
  std::optional<std::string> body;
  std::string content_type;                                  // of the body
  std::vector<std::pair<std::string, std::string>> headers;  // more ones, with a body
  bool wants_errors = false;  // the sink gets the bodies of errors, too
  // Sent as "Authorization: Bearer …" to the scheme, host and port of `url` only.
  std::string token;
  std::optional<std::pair<int64_t, int64_t>> range;  // bytes [first, second)
  // If false, a redirect to another host is not followed but returned as the reply.
  bool leave_host = true;
  // Limit for each response, from sending the request to the last byte. Unset: no limit.
  std::optional<std::chrono::milliseconds> time_limit;
};

struct HttpReply {
  int status = 0;
  std::string url;  // of the final response, after redirects
  std::map<std::string, std::string, std::less<>> headers;  // names in lower case

  // Returns a header, or nullopt if it is missing.
  std::optional<std::string> Header(std::string_view name) const;
};

// Returns the target of a redirect from `url`. Returns FailedPrecondition if it is neither http nor
// https, or leads from https to http.
absl::StatusOr<std::string> RedirectTarget(const std::string& url, const std::string& location);

// Reuses its connection between requests. Used by one thread at a time. Proxies are those of the
// environment (https_proxy and the like).
class HttpClient {
 public:
  // Receives a successful response's body, or any with wants_errors, piece by piece. Returns false
  // to end the request.
  using Sink = absl::FunctionRef<bool(const HttpReply&, std::string_view)>;

  // Requests end with Cancelled once `stop` is true. It must outlive the client.
  explicit HttpClient(const std::atomic<bool>* stop);
  ~HttpClient();

  // Returns the final response, whatever its status. Follows at most ten redirects, and none from
  // https to http. Returns Unavailable if there is no connection, it breaks, or half a minute
  // passes without data (a retry may help); Aborted if the sink returned false; FailedPrecondition
  // for errors that a retry cannot help.
  absl::StatusOr<HttpReply> Send(const HttpRequest& request, Sink sink);

 private:
  struct Free {
    void operator()(void* handle) const;
  };

  // Sends a request without following redirects.
  absl::StatusOr<HttpReply> SendOnce(const HttpRequest& request, bool with_token, Sink sink);

  const std::atomic<bool>* const stop_;
  std::unique_ptr<void, Free> handle_;  // CURL
};

}  // namespace millrace

#endif  // MILLRACE_HUB_HTTP_CLIENT_H_
