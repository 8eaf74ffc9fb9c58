#include "hub/http_client.h"

#include <curl/curl.h>

#include <array>
#include <mutex>

#include "absl/strings/ascii.h"
#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kHub);
constexpr int kMaxRedirects = 10;
constexpr size_t kMaxHeaderBytes = 1 << 16;  // of all headers of a response
constexpr long kConnectSeconds = 10;
constexpr long kSilentSeconds = 30;
// Limits for reading the body of an unwanted page. Reading it allows the connection to be reused,
// which is worth no more than this.
constexpr size_t kMaxUnwantedBytes = 1 << 20;
constexpr Duration kMaxUnwantedTime = std::chrono::seconds(1);

CURL* Handle(void* handle) { return static_cast<CURL*>(handle); }

// State of a request, shared with libcurl's callbacks.
struct Exchange {
  HttpReply response;
  size_t header_bytes = 0;
  HttpClient::Sink sink;
  bool wants_errors = false;
  bool enough = false;  // the sink returned false
  size_t unwanted_bytes = 0;
  std::optional<SteadyTime> unwanted_since;
  bool broken_off = false;  // an unwanted page exceeded its limits
  const std::atomic<bool>* stop;
};

size_t OnHeader(const char* data, size_t size, size_t count, void* user) {
  auto& exchange = *static_cast<Exchange*>(user);
  const std::string_view line(data, size * count);
  exchange.header_bytes += line.size();
  if (exchange.header_bytes > kMaxHeaderBytes) return 0;
  if (line.starts_with("HTTP/")) {
    exchange.response.headers.clear();
    const size_t space = line.find(' ');
    const auto status =
        space == line.npos ? std::nullopt : ParseNumber<int>(line.substr(space + 1, 3));
    exchange.response.status = status.value_or(0);
  } else if (const size_t colon = line.find(':'); colon != line.npos) {
    std::string name(Trim(line.substr(0, colon)));
    absl::AsciiStrToLower(&name);
    exchange.response.headers[std::move(name)] = std::string(Trim(line.substr(colon + 1)));
  }
  return line.size();
}

size_t OnBody(const char* data, size_t size, size_t count, void* user) {
  auto& exchange = *static_cast<Exchange*>(user);
  // The body of an error or redirect adds nothing to its headers.
  const int status = exchange.response.status;
  if (!(exchange.wants_errors && status > 399) && (status < 200 || status > 299)) {
    const SteadyTime now = Clock::Real().Now();
    if (!exchange.unwanted_since.has_value()) exchange.unwanted_since = now;
    exchange.unwanted_bytes += size * count;
    exchange.broken_off = exchange.unwanted_bytes > kMaxUnwantedBytes ||
                          now - *exchange.unwanted_since > kMaxUnwantedTime;
    return exchange.broken_off ? 0 : size * count;
  }
  exchange.enough = !exchange.sink(exchange.response, {data, size * count});
  return exchange.enough ? 0 : size * count;
}

int OnProgress(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return static_cast<Exchange*>(user)->stop->load() ? 1 : 0;
}

// Returns a part of a URL, or an empty string.
std::string UrlPart(const std::string& url, CURLUPart part) {
  std::unique_ptr<CURLU, void (*)(CURLU*)> parsed(curl_url(), curl_url_cleanup);
  char* text = nullptr;
  std::string found;
  if (curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(), 0) == CURLUE_OK &&
      curl_url_get(parsed.get(), part, &text, CURLU_DEFAULT_PORT) == CURLUE_OK) {
    found = text;
  }
  curl_free(text);
  return found;
}

std::string Origin(const std::string& url) {
  std::string host = UrlPart(url, CURLUPART_HOST);
  absl::AsciiStrToLower(&host);
  return StrCat(UrlPart(url, CURLUPART_SCHEME), "://", host, ":", UrlPart(url, CURLUPART_PORT));
}

// Returns the target of a redirect, or an empty string if it is not a URL.
std::string Resolve(const std::string& base, const std::string& location) {
  std::unique_ptr<CURLU, void (*)(CURLU*)> url(curl_url(), curl_url_cleanup);
  char* text = nullptr;
  std::string resolved;
  if (curl_url_set(url.get(), CURLUPART_URL, base.c_str(), 0) == CURLUE_OK &&
      curl_url_set(url.get(), CURLUPART_URL, location.c_str(), 0) == CURLUE_OK &&
      curl_url_get(url.get(), CURLUPART_URL, &text, 0) == CURLUE_OK) {
    resolved = text;
  }
  curl_free(text);
  return resolved;
}

absl::Status ToStatus(CURLcode code, const char* detail, const std::string& url,
                      const Exchange& exchange) {
  if (exchange.enough) return absl::AbortedError("the sink had enough");
  const std::string message =
      StrCat(Origin(url), ": ", *detail == '\0' ? curl_easy_strerror(code) : detail);
  switch (code) {
    case CURLE_ABORTED_BY_CALLBACK:
      return absl::CancelledError("stopped");
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_PARTIAL_FILE:
    case CURLE_GOT_NOTHING:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
      return absl::UnavailableError(message);
    default:
      return absl::FailedPreconditionError(message);
  }
}

}  // namespace

std::optional<std::string> HttpReply::Header(std::string_view name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? std::nullopt : std::optional(found->second);
}

void HttpClient::Free::operator()(void* handle) const { curl_easy_cleanup(Handle(handle)); }

HttpClient::HttpClient(const std::atomic<bool>* stop) : stop_(stop) {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  handle_.reset(curl_easy_init());
}

HttpClient::~HttpClient() = default;

absl::StatusOr<HttpReply> HttpClient::SendOnce(const HttpRequest& request, bool with_token,
                                               Sink sink) {
  if (handle_ == nullptr) return absl::InternalError("libcurl cannot be initialized");
  CURL* const curl = Handle(handle_.get());
  curl_easy_reset(curl);
  Exchange exchange{.response = {.url = request.url},
                    .sink = sink,
                    .wants_errors = request.wants_errors,
                    .stop = stop_};
  std::array<char, CURL_ERROR_SIZE> detail = {};
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, detail.data());
  curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_NOBODY, request.head ? 1L : 0L);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "millrace");
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, kSilentSeconds);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, OnHeader);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &exchange);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, OnBody);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &exchange);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, OnProgress);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &exchange);
  if (request.body.has_value()) {
    curl_easy_setopt(curl, CURLOPT_POST, 1L);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request.body->data());
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE,
                     static_cast<curl_off_t>(request.body->size()));
  }
  if (request.time_limit.has_value()) {
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(request.time_limit->count()));
  }
  if (request.range.has_value()) {
    const std::string range = StrCat(request.range->first, "-", request.range->second - 1);
    curl_easy_setopt(curl, CURLOPT_RANGE, range.c_str());
  }
  // Asks for unencoded bodies, since sizes and checksums are those of the files themselves.
  curl_slist* headers = curl_slist_append(nullptr, "Accept-Encoding: identity");
  if (with_token) {
    headers = curl_slist_append(headers, StrCat("Authorization: Bearer ", request.token).c_str());
  }
  if (request.body.has_value()) {
    headers = curl_slist_append(headers, StrCat("Content-Type: ", request.content_type).c_str());
    headers = curl_slist_append(headers, "Expect:");  // no round trip before the body
    for (const auto& [name, value] : request.headers) {
      headers = curl_slist_append(headers, StrCat(name, ": ", value).c_str());
    }
  }
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
  const CURLcode code = curl_easy_perform(curl);
  curl_slist_free_all(headers);
  if (code != CURLE_OK && !exchange.broken_off)
    return ToStatus(code, detail.data(), request.url, exchange);
  return std::move(exchange.response);
}

absl::StatusOr<std::string> RedirectTarget(const std::string& url, const std::string& location) {
  std::string next = Resolve(url, location);
  if (!next.starts_with("https://") && !next.starts_with("http://")) {
    return absl::FailedPreconditionError(
        StrCat(Origin(url), ": redirects to ", Printable(location), ", which is no URL of http"));
  }
  if (url.starts_with("https://") && !next.starts_with("https://")) {
    return absl::FailedPreconditionError(
        StrCat(Origin(url), ": redirects from https to ", Origin(next), ", which is not secure"));
  }
  return next;
}

absl::StatusOr<HttpReply> HttpClient::Send(const HttpRequest& request, Sink sink) {
  HttpRequest hop = request;
  const std::string home = Origin(request.url);
  for (int redirects = 0; redirects <= kMaxRedirects; ++redirects) {
    const bool at_home = Origin(hop.url) == home;
    MILLRACE_ASSIGN_OR_RETURN(HttpReply response,
                              SendOnce(hop, at_home && !hop.token.empty(), sink));
    // Omits the query, which may be a signature that grants access.
    kLog.Debug(hop.body   ? "POST "
               : hop.head ? "HEAD "
                          : "GET ",
               Origin(hop.url), Printable(UrlPart(hop.url, CURLUPART_PATH)), " ", response.status);
    const std::optional<std::string> location = response.Header("location");
    if (hop.body || response.status < 300 || response.status > 399 || !location.has_value()) {
      return response;
    }
    MILLRACE_ASSIGN_OR_RETURN(std::string next, RedirectTarget(hop.url, *location));
    if (!request.leave_host && Origin(next) != home) return response;
    hop.url = std::move(next);
  }
  return absl::FailedPreconditionError(
      StrCat(home, ": redirects more than ", kMaxRedirects, " times"));
}

}  // namespace millrace
