// Cross-origin requests of browsers: which pages' scripts may call the API and read its answers.
// https://fetch.spec.whatwg.org/#http-cors-protocol
#ifndef MILLRACE_SERVER_HTTP_API_CORS_H_
#define MILLRACE_SERVER_HTTP_API_CORS_H_

#include <string>
#include <string_view>
#include <vector>

#include "server/http/api/http_message.h"

namespace millrace {

// The pages that are allowed. Immutable.
class CorsPolicy {
 public:
  // `origins` as Origin headers have them, or "*" for every page.
  explicit CorsPolicy(std::vector<std::string> origins) : origins_(std::move(origins)) {}

  // Returns whether the request names an origin that is allowed.
  bool Allows(const HttpRequestHead& head) const;

  // Returns the lines that let the page read the answer, each with its line end; empty for a
  // request that names no allowed origin.
  std::string HeaderLines(const HttpRequestHead& head) const;

  // Returns whether a browser asks, ahead of a request, if it may send it.
  static bool IsPreflight(const HttpRequestHead& head) {
    return head.method == "OPTIONS" && head.origin && !head.cors_method.empty();
  }
  // Returns the answer to one that is allowed. `methods`: the path's, "GET, HEAD".
  static HttpResponse Preflight(const HttpRequestHead& head, std::string_view methods);

 private:
  const std::vector<std::string> origins_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_API_CORS_H_
