#include "server/http/api/api.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/strings.h"
#include "engine/request/tenant.h"
#include "formats/json/json.h"

namespace millrace {
namespace {

constexpr absl::Duration kDrainRetryAfter = absl::Seconds(5);

// Bodies above this are parsed elsewhere: JSON takes some 10 ns a byte.
constexpr size_t kSmallBytes = 32 << 10;

Credentials CredentialsOf(const HttpRequestHead& head) {
  Credentials shown{.authorization = head.authorization};
  if (head.identities != nullptr) shown.identities = *head.identities;
  return shown;
}

HttpResponse Refusal(int status, std::string_view code, std::string_view message) {
  return ErrorResponse(HttpError(status, code, message));
}

HttpResponse Unavailable(std::string_view message) {
  ApiError error = HttpError(503, "service_unavailable", message);
  error.retry_after = kDrainRetryAfter;
  return ErrorResponse(error);
}

// "application/json; charset=utf-8"
bool IsJson(std::string_view content_type) {
  constexpr std::string_view kJson = "application/json";
  const std::string_view type = content_type.substr(0, kJson.size());
  const std::string_view rest = content_type.substr(type.size());
  return absl::EqualsIgnoreCase(AbslView(type), AbslView(kJson)) &&
         (rest.empty() || rest.front() == ';' || rest.front() == ' ');
}

// KServe's clients say no type, and have tensors in binary behind the JSON.
bool Allows(BodyMedia media, std::string_view content_type) {
  if (media == BodyMedia::kAny || IsJson(content_type)) return true;
  return media == BodyMedia::kJsonOrTensors &&
         (content_type.empty() || content_type == "application/octet-stream");
}

// Refuses what changes state, or generates, for any page but the administration's own. HostPolicy
// lets other pages of this machine ask; a program without an Origin is no page, and may change
// state, but generates at the public port, which has keys.
std::optional<ApiError> CheckAdminOrigin(const HttpRequestHead& head, bool generates) {
  if (!head.origin.has_value()) {
    if (!generates) return std::nullopt;
    return HttpError(403, "foreign_origin",
                     StrCat(head.path,
                            " at this port is for the console's own page alone; others "
                            "use --http-port"));
  }
  if (head.method == "GET" || head.method == "HEAD" || head.method == "OPTIONS") {
    return std::nullopt;
  }
  const std::optional<Authority> host = Authority::Parse(head.host);
  const size_t scheme = head.origin->find("://");  // https: of a proxy in front
  if (host.has_value() && scheme != std::string::npos) {
    const auto origin = Authority::Parse(std::string_view(*head.origin).substr(scheme + 3));
    if (origin.has_value() && origin->name == host->name && origin->port == host->port) {
      return std::nullopt;
    }
  }
  return HttpError(
      403, "foreign_origin",
      StrCat("the Origin \"", Printable(*head.origin), "\" is not this listener's own page"));
}

}  // namespace

Api::Api(Frontend& frontend, HostPolicy hosts, ApiOptions options,
         std::vector<HttpProtocol> protocols)
    : frontend_(frontend),
      options_(std::move(options)),
      cors_(options_.allowed_origins),
      protocols_(std::move(protocols)),
      hosts_(std::make_shared<const HostPolicy>(std::move(hosts))) {
  for (const HttpProtocol& protocol : protocols_) {
    for (const HttpEndpoint& endpoint : protocol.endpoints) {
      if (!endpoint.listeners.Has(options_.listener)) continue;
      const std::string_view fixed = endpoint.fixed_path();
      places_.push_back({fixed, fixed.size() < endpoint.path.size(), &endpoint});
    }
  }
}

std::vector<const HttpEndpoint*> Api::endpoints() const {
  std::vector<const HttpEndpoint*> endpoints;
  endpoints.reserve(places_.size());
  for (const Place& place : places_) endpoints.push_back(place.endpoint);
  return endpoints;
}

std::optional<HttpResponse> Api::Check(const HttpRequestHead& head) const {
  std::optional<HttpResponse> refusal = CheckHead(head);
  if (refusal && refusal->status >= 400) ShapeError(head.path, *refusal);
  return refusal;
}

void Api::ShapeError(std::string_view path, HttpResponse& refusal) const {
  for (const HttpProtocol& protocol : protocols_) {
    if (!protocol.errors.has_value() || !protocol.errors->owns(path)) continue;
    const Json json = Json::parse(refusal.body, nullptr, /*allow_exceptions=*/false);
    const Json* error = json.is_object() ? FindField(json, "error") : nullptr;
    const Json* message =
        error != nullptr && error->is_object() ? FindField(*error, "message") : nullptr;
    if (message == nullptr || !message->is_string()) return;
    refusal.body =
        protocol.errors->body({.status = refusal.status, .message = message->get<std::string>()});
    return;
  }
}

Api::Handler Api::HandlerOf(const HttpRequestHead& head) const {
  const HttpEndpoint* const endpoint = FindEndpoint(head);
  if (endpoint == nullptr) return {.name = "none", .routine = false};
  const Access access = endpoint->access;
  return {.name = endpoint->path, .routine = access.open() || access.scope() == Scope::kMetrics};
}

void Api::SetHosts(HostPolicy hosts) {
  auto policy = std::make_shared<const HostPolicy>(std::move(hosts));
  const std::lock_guard lock(mutex_);
  hosts_.swap(policy);
}

bool Api::guarded() const {
  if (options_.listener == Listener::kMetrics) return false;
  return options_.listener != Listener::kAdmin || frontend_.guards_admin();
}

bool Api::needs_key() const { return guarded() && !frontend_.Authorize("").ok(); }

// Probes come from where the pod's name is not known, and say nothing that a page could use.
std::optional<HttpResponse> Api::CheckAccess(const HttpRequestHead& head,
                                             const HttpEndpoint* endpoint) const {
  const auto hosts = [this] {
    const std::lock_guard lock(mutex_);
    return hosts_;
  }();
  const bool open = endpoint != nullptr && endpoint->access.open();
  const bool allowed_page = cors_.Allows(head);
  if (absl::Status s = hosts->Check(open ? std::string_view() : std::string_view(head.host),
                                    allowed_page ? std::nullopt : head.origin);
      !s.ok()) {
    return ErrorResponse(s);
  }
  if (!guarded() || open) return std::nullopt;
  // A browser sends no key with it.
  if (allowed_page && CorsPolicy::IsPreflight(head)) return std::nullopt;
  const Scope scope = endpoint == nullptr ? Scope::kAny : endpoint->access.scope();
  if (absl::Status s = frontend_.Authorize(CredentialsOf(head), scope, nullptr); !s.ok()) {
    return ErrorResponse(s);
  }
  return std::nullopt;
}

std::optional<HttpResponse> Api::CheckHead(const HttpRequestHead& head) const {
  const HttpEndpoint* endpoint = FindEndpoint(head);
  if (auto refusal = CheckAccess(head, endpoint)) return refusal;
  if (endpoint == nullptr) {
    return Refusal(404, "unknown_url",
                   StrCat("there is no path ", Printable(head.path), " on this server"));
  }
  const std::string allow = AllowedMethods(head.path);
  if (CorsPolicy::IsPreflight(head) && cors_.Allows(head)) {
    return CorsPolicy::Preflight(head, allow);
  }
  if (head.method == "OPTIONS") return HttpResponse{.status = 204, .headers = {{"Allow", allow}}};
  if (head.method != endpoint->method && !(head.method == "HEAD" && endpoint->method == "GET")) {
    HttpResponse refusal = Refusal(405, "method_not_allowed",
                                   StrCat("the method of ", head.path, " is ", endpoint->method,
                                          ", not ", Printable(head.method)));
    refusal.headers.emplace_back("Allow", allow);
    return refusal;
  }
  if (options_.listener == Listener::kAdmin) {
    const bool generates = endpoint->access.scope() == Scope::kInfer;
    if (const auto refusal = CheckAdminOrigin(head, generates)) return ErrorResponse(*refusal);
  }
  if (auto refusal = CheckBody(head, endpoint->body)) return refusal;
  if (endpoint->serving && !frontend_.takes_work()) return NotReady();
  return std::nullopt;
}

std::optional<HttpResponse> Api::CheckBody(const HttpRequestHead& head,
                                           const BodyRule& rule) const {
  if (!Allows(rule.media, head.content_type)) {
    return Refusal(415, "unsupported_media_type",
                   StrCat("Content-Type is \"", Printable(head.content_type),
                          "\"; allowed: application/json"));
  }
  if (!head.content_encoding.empty() && head.content_encoding != "identity") {
    return Refusal(
        415, "unsupported_media_type",
        StrCat("Content-Encoding is \"", Printable(head.content_encoding), "\"; allowed: none"));
  }
  const uint64_t most = std::min(options_.max_body_bytes, rule.max_bytes);
  if (head.content_length.value_or(0) > most) {
    return Refusal(
        413, "body_too_large",
        StrCat("the body has ", *head.content_length, " bytes; allowed: at most ", most));
  }
  return std::nullopt;
}

HttpResponse Api::NotReady() const {
  if (frontend_.leaving()) return Unavailable("the server is shutting down");
  const std::string loading = frontend_.loading();
  return Unavailable(StrCat("the server is not ready yet", loading.empty() ? "" : ": ", loading));
}

RequestCost Api::CostOf(const HttpRequestHead& head, size_t body_bytes) const {
  const HttpEndpoint* const endpoint = FindEndpoint(head);
  if (endpoint != nullptr && endpoint->renders) return RequestCost::kRendering;
  return body_bytes > kSmallBytes ? RequestCost::kBody : RequestCost::kSmall;
}

bool Api::IsOpen(const HttpRequestHead& head) const {
  const HttpEndpoint* const endpoint = FindEndpoint(head);
  return endpoint != nullptr && endpoint->access.open();
}

uint64_t Api::MaxBodyBytes(const HttpRequestHead& head) const {
  const HttpEndpoint* const endpoint = FindEndpoint(head);
  if (endpoint == nullptr) return options_.max_body_bytes;
  return std::min(options_.max_body_bytes, endpoint->body.max_bytes);
}

Handled Api::Handle(const HttpRequestHead& head, const std::string& body, const Wake& wake) const {
  return FindEndpoint(head)->handle({.api = *this, .head = head, .body = body, .wake = wake});
}

std::string Api::AllowedMethods(std::string_view path) const {
  std::string methods;
  for (const Place& place : places_) {
    if (!place.Has(path)) continue;
    const std::string_view method = place.endpoint->method;
    methods += StrCat(method, method == "GET" ? ", HEAD, " : ", ");
  }
  return methods + "OPTIONS";
}

const HttpEndpoint* Api::FindEndpoint(const HttpRequestHead& head) const {
  const std::string_view method = head.method == "HEAD" ? "GET" : std::string_view(head.method);
  const HttpEndpoint* found = nullptr;
  for (const Place& place : places_) {
    if (!place.Has(head.path)) continue;
    if (place.endpoint->method == method) return place.endpoint;
    if (found == nullptr) found = place.endpoint;
  }
  return found;
}

std::optional<absl::Time> DeadlineOf(const HttpRequestHead& head) {
  if (!head.timeout.has_value()) return std::nullopt;
  return absl::Now() + *head.timeout;
}

// The key may have been revoked since Check. Of a deadline in the body and one in the header, the
// earlier counts.
absl::Status Api::SetCaller(const HttpRequestHead& head, std::shared_ptr<const Tenant>& tenant,
                            std::optional<absl::Time>& deadline) const {
  if (const auto by_header = DeadlineOf(head)) {
    deadline = std::min(deadline.value_or(*by_header), *by_header);
  }
  // The console's page, which has no key to send where the administration needs none.
  if (options_.listener == Listener::kAdmin && !guarded()) return absl::OkStatus();
  return frontend_.Authorize(CredentialsOf(head), Scope::kInfer, &tenant);
}

std::shared_ptr<const Tenant> Api::TenantOf(const HttpRequestHead& head) const {
  std::shared_ptr<const Tenant> tenant;
  if (options_.listener == Listener::kAdmin && !guarded()) return nullptr;
  if (!frontend_.Authorize(CredentialsOf(head), Scope::kAny, &tenant).ok()) return nullptr;
  return tenant;
}

std::string Api::OwnerOf(const HttpRequestHead& head) const {
  std::shared_ptr<const Tenant> tenant;
  std::optional<absl::Time> deadline;
  if (!SetCaller(head, tenant, deadline).ok() || tenant == nullptr) return head.authorization;
  return StrCat("tenant ", tenant->limits().name);
}

}  // namespace millrace
