// Checks HTTP requests (host, key, path, method, limits) and hands them to the endpoints that
// protocols have registered.
#ifndef MILLRACE_SERVER_HTTP_API_API_H_
#define MILLRACE_SERVER_HTTP_API_API_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/settings.h"
#include "server/frontend.h"
#include "server/http/api/cors.h"
#include "server/http/api/endpoint.h"
#include "server/http/api/host_policy.h"
#include "server/http/api/http_message.h"

namespace millrace {

struct ApiOptions {
  Listener listener = Listener::kPublic;
  std::vector<std::string> allowed_origins;  // of pages, as CorsPolicy takes them
  std::string console;                       // its URL, for GET /; empty: not shown
  uint64_t max_body_bytes = 32 << 20;
  UnknownFields unknown_fields = UnknownFields::kRefuse;
  bool auto_tool_choice = true;
  std::function<void()> drain = [] {};  // begins to end the server, as SIGTERM does; any thread
};

// Where a request is handled: kSmall where streams are written, since it takes microseconds; kBody
// and kRendering, whose body is long or whose answer is made of much, on threads for these.
enum class RequestCost { kSmall, kBody, kRendering };

// Returns when the request expires, as its header says; nothing if it does not.
std::optional<absl::Time> DeadlineOf(const HttpRequestHead& head);

// A listener's endpoints. Thread-safe.
class Api {
 public:
  // Serves those endpoints of the protocols that belong to the listener.
  Api(Frontend& frontend, HostPolicy hosts, ApiOptions options,
      std::vector<HttpProtocol> protocols);
  Api(const Api&) = delete;
  Api& operator=(const Api&) = delete;

  // ---- For connections ----

  // Checks everything that the header alone decides, before a byte of the body is kept: foreign
  // hosts, keys, paths, methods, media types, announced lengths. Returns the response to a refused
  // request; otherwise read the body and call Handle.
  std::optional<HttpResponse> Check(const HttpRequestHead& head) const;

  // Answers a request that Check let pass. May take milliseconds unless CostOf says kSmall.
  Handled Handle(const HttpRequestHead& head, const std::string& body, const Wake& wake) const;

  // Returns how long Handle may take.
  RequestCost CostOf(const HttpRequestHead& head, size_t body_bytes) const;

  // Returns whether the request needs no key: a probe.
  bool IsOpen(const HttpRequestHead& head) const;

  // Returns how many bytes the body of a request may have.
  uint64_t MaxBodyBytes(const HttpRequestHead& head) const;

  // Gives a refusal that has OpenAI's shape the one of the protocol that its path belongs to,
  // whether or not there is such a path.
  void ShapeError(std::string_view path, HttpResponse& refusal) const;

  // Returns the endpoint that a request takes, as the access log and metrics name it.
  struct Handler {
    std::string_view name;  // "/v1/completions"; "none" where there is no endpoint
    bool routine;           // a probe or a scrape
  };
  Handler HandlerOf(const HttpRequestHead& head) const;

  // Returns the tenant whose key or certificate the request shows; null if none.
  std::shared_ptr<const Tenant> TenantOf(const HttpRequestHead& head) const;

  // Sets what Host and Origin may be from now on.
  void SetHosts(HostPolicy hosts);

  // ---- For handlers ----

  // Sets who asks: the tenant, the deadline and the trace of a request for the engine.
  template <typename Request>
  absl::Status SetCaller(const HttpRequestHead& head, Request& request) const {
    request.trace = head.trace;
    return SetCaller(head, request.tenant, request.deadline);
  }
  absl::Status SetCaller(const HttpRequestHead& head, std::shared_ptr<const Tenant>& tenant,
                         std::optional<absl::Time>& deadline) const;

  // Returns whose the things are that the request stores and asks for: the tenant's, whichever of
  // its keys or certificates it shows; without tenants, the credential's.
  std::string OwnerOf(const HttpRequestHead& head) const;

  // Returns the answer of a server that warms up or drains.
  HttpResponse NotReady() const;

  // Returns whether endpoints that are not open need a key.
  bool needs_key() const;

  const ApiOptions& options() const { return options_; }
  const CorsPolicy& cors() const { return cors_; }
  Frontend& frontend() const { return frontend_; }
  const std::vector<HttpProtocol>& protocols() const { return protocols_; }
  // Returns the endpoints of this listener, in the order of their registration.
  std::vector<const HttpEndpoint*> endpoints() const;
  // Returns whether connections close after their answer, because the server is about to end.
  bool leaving() const { return frontend_.leaving(); }

 private:
  // An endpoint of this listener, where FindEndpoint looks for it.
  struct Place {
    // The whole path, or the beginning of all the endpoint's paths if `is_prefix`.
    std::string_view fixed;
    bool is_prefix;
    const HttpEndpoint* endpoint;

    bool Has(std::string_view path) const {
      return is_prefix ? path.starts_with(fixed) : path == fixed;
    }
  };

  // Returns whether keys are asked for on this listener, if any are set.
  bool guarded() const;
  // Returns the methods of a path, as Allow lists them.
  std::string AllowedMethods(std::string_view path) const;
  // Returns the endpoint of the path and the method, or else one of the path; null if none.
  const HttpEndpoint* FindEndpoint(const HttpRequestHead& head) const;
  std::optional<HttpResponse> CheckHead(const HttpRequestHead& head) const;
  std::optional<HttpResponse> CheckAccess(const HttpRequestHead& head,
                                          const HttpEndpoint* endpoint) const;
  std::optional<HttpResponse> CheckBody(const HttpRequestHead& head, const BodyRule& rule) const;

  Frontend& frontend_;
  const ApiOptions options_;
  const CorsPolicy cors_;
  const std::vector<HttpProtocol> protocols_;
  std::vector<Place> places_;
  mutable std::mutex mutex_;
  std::shared_ptr<const HostPolicy> hosts_;  // guarded by mutex_
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_API_API_H_
