#include "server/http/transport/wire.h"

#include <algorithm>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/status.hpp>
#include <charconv>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/strings.h"
#include "config/help.h"
#include "engine/request/request.h"
#include "engine/request/request_id.h"
#include "server/http/json/json_writer.h"

namespace millrace {
namespace {

namespace http = boost::beast::http;

constexpr size_t kChunkDigits = 8;

// The first field of that name; empty if there is none.
template <typename Name>
std::string_view Value(const HttpHeader& header, Name name) {
  const auto it = header.find(name);
  if (it == header.end()) return {};
  return {it->value().data(), it->value().size()};
}

ApiError BadRequest(std::string_view message) { return HttpError(400, "bad_request", message); }

// "/path?query", or "http://authority/path?query" as a proxy may send it; its authority goes before
// Host.
std::optional<ApiError> ReadTarget(std::string_view target, HttpRequestHead& head) {
  if (const size_t scheme = target.find("://");
      !target.starts_with('/') && scheme != std::string_view::npos) {
    const absl::string_view name = AbslView(target.substr(0, scheme));
    if (!absl::EqualsIgnoreCase(name, "http") && !absl::EqualsIgnoreCase(name, "https")) {
      return BadRequest(StrCat("the target's scheme is \"", Printable(target.substr(0, scheme)),
                               "\"; allowed: http, https"));
    }
    target.remove_prefix(scheme + 3);
    const size_t end = std::min(target.find_first_of("/?"), target.size());
    head.host = target.substr(0, end);
    if (head.host.empty()) return BadRequest("the target names no host");
    target.remove_prefix(end);
    if (!target.starts_with('/')) target = "/";
  }
  target = target.substr(0, target.find('#'));
  head.path = target.substr(0, target.find('?'));
  if (head.path.size() < target.size()) head.query = target.substr(head.path.size() + 1);
  return std::nullopt;
}

std::optional<ApiError> CheckFraming(const HttpHeader& header) {
  const size_t hosts = header.count(http::field::host);
  if (hosts > 1) return BadRequest("the header has more than one Host");
  if (hosts == 0 && header.version() >= 11) return BadRequest("the header has no Host");
  if (hosts == 1 && Value(header, http::field::host).empty()) return BadRequest("Host is empty");
  // A proxy may have looked at the other one of two.
  for (const http::field once : {http::field::origin, http::field::content_type,
                                 http::field::authorization, http::field::content_encoding}) {
    if (header.count(once) > 1) {
      const auto name = http::to_string(once);
      return BadRequest(
          StrCat("the header has more than one ", std::string_view(name.data(), name.size())));
    }
  }
  if (header.count(http::field::transfer_encoding) > 0) {
    const std::string_view encoding = Value(header, http::field::transfer_encoding);
    if (header.version() < 11 || !absl::EqualsIgnoreCase(AbslView(encoding), "chunked")) {
      return BadRequest(StrCat("Transfer-Encoding is \"", Printable(encoding),
                               "\"; allowed: chunked, in HTTP/1.1"));
    }
  }
  const std::string_view expect = Value(header, http::field::expect);
  if (header.version() >= 11 && !expect.empty() &&
      !absl::EqualsIgnoreCase(AbslView(expect), "100-continue")) {
    return HttpError(417, "expectation_failed",
                     StrCat("Expect is \"", Printable(expect), "\"; allowed: 100-continue"));
  }
  return std::nullopt;
}

std::optional<ApiError> ReadTimeout(const HttpHeader& header, HttpRequestHead& head) {
  constexpr std::string_view kName = "X-Request-Timeout-Ms";
  if (header.count(kName) == 0) return std::nullopt;
  const std::string_view text = Value(header, kName);
  int64_t milliseconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), milliseconds);
  if (error != std::errc() || end != text.data() + text.size() || milliseconds < 1 ||
      milliseconds > kMaxTimeoutMs || header.count(kName) > 1) {
    return BadRequest(
        StrCat(kName, " is \"", Printable(text), "\"; allowed: once, 1 to ", kMaxTimeoutMs));
  }
  head.timeout = absl::Milliseconds(milliseconds);
  return std::nullopt;
}

// The Open Inference Protocol's extension for tensors in binary.
std::optional<ApiError> ReadJsonLength(const HttpHeader& header, HttpRequestHead& head) {
  constexpr std::string_view kName = "Inference-Header-Content-Length";
  if (header.count(kName) == 0) return std::nullopt;
  const std::string_view text = Value(header, kName);
  head.json_length = ParseNumber<uint64_t>(text);
  if (head.json_length.has_value() && header.count(kName) == 1) return std::nullopt;
  return BadRequest(StrCat(kName, " is \"", Printable(text), "\"; allowed: once, a number"));
}

}  // namespace

std::optional<ApiError> ReadHead(const HttpHeader& header, size_t max_fields,
                                 HttpRequestHead& head) {
  const std::string_view id = Value(header, "X-Request-Id");
  head.request_id = IsFitRequestId(id) ? std::string(id) : NewRequestId();
  head.method = header.method_string();
  if (std::distance(header.begin(), header.end()) > static_cast<ptrdiff_t>(max_fields)) {
    return HttpError(431, "header_too_large",
                     StrCat("the header has more than ", max_fields, " fields"));
  }
  if (auto error = CheckFraming(header)) return error;
  head.host = Value(header, http::field::host);
  if (auto error = ReadTarget({header.target().data(), header.target().size()}, head)) return error;
  if (header.count(http::field::origin) > 0) head.origin = Value(header, http::field::origin);
  head.cors_method = Value(header, http::field::access_control_request_method);
  head.cors_headers = Value(header, http::field::access_control_request_headers);
  head.cors_private_network = Value(header, "Access-Control-Request-Private-Network") == "true";
  head.authorization = Value(header, http::field::authorization);
  // Anthropic's clients send the key so.
  if (const auto key = header.find("x-api-key");
      head.authorization.empty() && key != header.end()) {
    head.authorization = StrCat("Bearer ", std::string(key->value()));
  }
  head.content_type = Value(header, http::field::content_type);
  head.accept = Value(header, http::field::accept);
  head.is_anthropic = header.count("anthropic-version") > 0;
  head.content_encoding = Value(header, http::field::content_encoding);
  if (header.count("traceparent") == 1) {
    head.trace = ParseTraceContext(Value(header, "traceparent"), Value(header, "tracestate"));
  }
  if (auto error = ReadJsonLength(header, head)) return error;
  return ReadTimeout(header, head);
}

ApiError MalformedError(const boost::beast::error_code& error) {
  if (error == http::error::header_limit) {
    return HttpError(431, "header_too_large", "the header is too large");
  }
  if (error == http::error::bad_version) {
    return HttpError(505, "http_version_not_supported", "allowed: HTTP/1.1 and HTTP/1.0");
  }
  return BadRequest(StrCat("the request is not HTTP: ", error.message()));
}

void AppendResponseHead(std::string& out, const HttpResponse& response, std::string_view request_id,
                        Framing framing, size_t length, bool keep_alive,
                        std::string_view more_lines) {
  const auto line = [&out](std::string_view name, std::string_view value) {
    out += name;
    out += ": ";
    out += value;
    out += "\r\n";
  };
  out += "HTTP/1.1 ";
  AppendJsonNumber(out, response.status);
  out += ' ';
  out += http::obsolete_reason(static_cast<http::status>(response.status));
  out += "\r\n";
  line("Server", StrCat("millrace/", Version()));
  line("Date", absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT", absl::Now(), absl::UTCTimeZone()));
  line("X-Request-Id", request_id);
  if (framing != Framing::kNone) line("Content-Type", response.content_type);
  if (framing == Framing::kLength) line("Content-Length", StrCat(length));
  if (framing == Framing::kChunked) line("Transfer-Encoding", "chunked");
  line("Connection", keep_alive ? "keep-alive" : "close");
  for (const auto& [name, value] : response.headers) line(name, value);
  out += more_lines;
  out += "\r\n";
}

size_t OpenChunk(std::string& out) {
  const size_t opened = out.size();
  out.append(kChunkDigits, '0');
  out += "\r\n";
  return opened;
}

void CloseChunk(std::string& out, size_t opened) {
  constexpr std::string_view kHex = "0123456789abcdef";
  size_t length = out.size() - opened - kChunkDigits - 2;
  if (length == 0) return out.resize(opened);
  for (size_t i = kChunkDigits; i > 0; --i, length >>= 4) out[opened + i - 1] = kHex[length & 15];
  out += "\r\n";
}

}  // namespace millrace
