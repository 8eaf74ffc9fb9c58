#include "server/http/api/cors.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "base/strings.h"

namespace millrace {
namespace {

constexpr std::string_view kUsualHeaders = "authorization, content-type, x-request-id";
// What a page's script may read of an answer beside its type and length: all that we send and that
// clients look at.
constexpr std::string_view kExposedHeaders =
    "X-Request-Id, Retry-After, x-should-retry, WWW-Authenticate, Allow, "
    "Inference-Header-Content-Length";
constexpr size_t kMostHeaderBytes = 1024;

// Returns whether the text is a list of header names. It is sent back, so nothing else may pass.
bool IsHeaderList(std::string_view text) {
  return !text.empty() && text.size() <= kMostHeaderBytes &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' ||
                  c == ',' || c == ' ';
         });
}

bool Contains(const std::vector<std::string>& list, std::string_view text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

}  // namespace

bool CorsPolicy::Allows(const HttpRequestHead& head) const {
  return head.origin && (Contains(origins_, "*") || Contains(origins_, *head.origin));
}

std::string CorsPolicy::HeaderLines(const HttpRequestHead& head) const {
  if (!Allows(head)) return "";
  const bool every = Contains(origins_, "*");
  return StrCat("Access-Control-Allow-Origin: ", every ? "*" : *head.origin,
                every ? "" : "\r\nVary: Origin",
                "\r\nAccess-Control-Expose-Headers: ", kExposedHeaders, "\r\n");
}

HttpResponse CorsPolicy::Preflight(const HttpRequestHead& head, std::string_view methods) {
  HttpResponse response{.status = 204};
  response.headers = {
      {"Access-Control-Allow-Methods", std::string(methods)},
      {"Access-Control-Allow-Headers",
       IsHeaderList(head.cors_headers) ? head.cors_headers : std::string(kUsualHeaders)},
      {"Access-Control-Max-Age", "600"}};
  if (head.cors_private_network) {
    response.headers.emplace_back("Access-Control-Allow-Private-Network", "true");
  }
  return response;
}

}  // namespace millrace
