// HTTP requests, one at a time, over libcurl.
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

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "base/clock.h"

namespace millrace {

struct HttpRequest {
  std::string url;  // http or https
  bool head = false;
  // Sent as "Authorization: Bearer …" to `url`'s own scheme, host and port, and to no other.
  std::string token;
  std::optional<std::pair<int64_t, int64_t>> range;  // bytes [first, second)
  // Whether a redirect to another host is followed. Else it is the answer.
  bool leave_host = true;
  // Of each response, from asking for it to its last byte. Unset: however long it takes.
  std::optional<std::chrono::milliseconds> time_limit;
};

struct HttpReply {
  int status = 0;
  std::string url;                                          // that answered, after redirects
  std::map<std::string, std::string, std::less<>> headers;  // names in lower case

  // Nothing for one that is missing.
  std::optional<std::string> Header(std::string_view name) const;
};

// The URL that a redirect from `url` leads to. FailedPrecondition: none of http or https, or from
// https to http.
absl::StatusOr<std::string> RedirectTarget(const std::string& url, const std::string& location);

// Keeps its connection from one request to the next. One thread at a time. Proxies are those of the
// environment (https_proxy and the like).
class HttpClient {
 public:
  // What a successful response's body is given to, piece by piece. False: enough, or too much.
  using Sink = absl::FunctionRef<bool(const HttpReply&, std::string_view)>;

  // `stop`, once true, ends requests with Cancelled; it must outlive the client.
  explicit HttpClient(const std::atomic<bool>* stop);
  ~HttpClient();

  // The final response, whatever its status. Redirects are followed, at most ten, never from https
  // to http. Unavailable: no connection, none any more, or nothing came for half a minute: another
  // try may help. Aborted: the sink had enough. FailedPrecondition: what another try does not help.
  absl::StatusOr<HttpReply> Send(const HttpRequest& request, Sink sink);

 private:
  struct Free {
    void operator()(void* handle) const;
  };

  // Without redirects.
  absl::StatusOr<HttpReply> SendOnce(const HttpRequest& request, bool with_token, Sink sink);

  const std::atomic<bool>* const stop_;
  std::unique_ptr<void, Free> handle_;  // CURL
};

}  // namespace millrace

#endif  // MILLRACE_HUB_HTTP_CLIENT_H_
