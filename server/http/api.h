// Answers HTTP requests: routes paths, authenticates, checks limits.
#ifndef MILLRACE_SERVER_HTTP_API_H_
#define MILLRACE_SERVER_HTTP_API_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/frontend.h"
#include "server/http/cors.h"
#include "server/http/host_policy.h"
#include "server/http/http_message.h"
#include "server/http/openai_request.h"
#include "server/http/response_store.h"

namespace millrace {

struct ApiOptions {
  bool admin = false;         // the operator's listener: other paths, a key only with --keys
  bool metrics_only = false;  // a scraper's listener: /metrics and the probes alone, and no key
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

// Thread-safe.
class Api {
 public:
  Api(Frontend& frontend, HostPolicy hosts, ApiOptions options)
      : frontend_(frontend),
        options_(std::move(options)),
        cors_(options_.allowed_origins),
        hosts_(std::make_shared<const HostPolicy>(std::move(hosts))) {}

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

  // Returns the route that a request takes, as the access log and metrics name it.
  struct Handler {
    std::string_view name;  // "/v1/completions"; "none" where there is no route
    bool routine;           // a probe or a scrape
  };
  Handler HandlerOf(const HttpRequestHead& head) const;

  // Returns the tenant whose key or certificate the request shows; null if none.
  std::shared_ptr<const Tenant> TenantOf(const HttpRequestHead& head) const;

  // Sets what Host and Origin may be from now on.
  void SetHosts(HostPolicy hosts);

  const ApiOptions& options() const { return options_; }
  const CorsPolicy& cors() const { return cors_; }
  Frontend& frontend() const { return frontend_; }
  // Returns whether connections close after their answer, because the server is about to end.
  bool leaving() const { return frontend_.leaving(); }

 private:
  struct Route;
  static std::span<const Route> Routes();  // of all listeners
  // Returns whether this listener has the route.
  bool Has(const Route& route) const;
  static bool IsPathOf(const Route& route, std::string_view path);
  // Returns the methods of a path, as Allow lists them.
  std::string AllowedMethods(std::string_view path) const;
  const Route* FindRoute(const HttpRequestHead& head) const;
  std::optional<HttpResponse> CheckHead(const HttpRequestHead& head) const;
  std::optional<HttpResponse> CheckAccess(const HttpRequestHead& head, const Route* route) const;
  std::optional<HttpResponse> CheckBody(const HttpRequestHead& head) const;
  std::optional<HttpResponse> CheckServing() const;
  HttpResponse NotReady() const;
  // Sets who asks: the tenant, the deadline and the trace of a request for the engine.
  template <typename Request>
  absl::Status SetCaller(const HttpRequestHead& head, Request& request) const {
    request.trace = head.trace;
    return SetCaller(head, request.tenant, request.deadline);
  }
  absl::Status SetCaller(const HttpRequestHead& head, std::shared_ptr<const Tenant>& tenant,
                         std::optional<absl::Time>& deadline) const;

  // Returns whose the responses are that the request stores and asks for: the tenant's, whichever
  // of its keys or certificates it shows; without tenants, the credential's.
  std::string OwnerOf(const HttpRequestHead& head) const;

  // Returns /openapi.json, which is made at the first call.
  const std::string& OpenApi() const;
  Handled Models(const HttpRequestHead& head) const;
  // Answers with what `to_json` says of the only model.
  Handled Info(std::string (*to_json)(ServedModel&)) const;
  Handled Health(bool needs_ready) const;
  Handled Metrics() const;
  Handled SetLog(const std::string& body) const;
  Handled Generate(ApiKind kind, const HttpRequestHead& head, const std::string& body,
                   const Wake& wake) const;
  // Returns what finds out how requests to a model begin.
  DefaultsOf Defaults() const;
  Handled Messages(const HttpRequestHead& head, const std::string& body, const Wake& wake) const;
  Handled CountTokens(const HttpRequestHead& head, const std::string& body, const Wake& wake) const;
  Handled CreateResponse(const HttpRequestHead& head, const std::string& body,
                         const Wake& wake) const;
  Handled GetResponse(const HttpRequestHead& head) const;
  Handled DeleteResponse(const HttpRequestHead& head) const;
  Handled Embed(const HttpRequestHead& head, const std::string& body, const Wake& wake) const;
  Handled Score(bool rerank, const HttpRequestHead& head, const std::string& body,
                const Wake& wake) const;
  // The Open Inference Protocol's paths (kserve.h).
  Handled KserveInfo(const HttpRequestHead& head) const;
  Handled KserveInfer(const HttpRequestHead& head, const std::string& body, const Wake& wake) const;
  Handled Tokenize(const HttpRequestHead& head, const std::string& body, const Wake& wake) const;
  Handled Detokenize(const HttpRequestHead& head, const std::string& body, const Wake& wake) const;

  Frontend& frontend_;
  const ApiOptions options_;
  const std::shared_ptr<ResponseStore> responses_ = std::make_shared<ResponseStore>();
  const CorsPolicy cors_;
  mutable std::once_flag openapi_made_;
  mutable std::string openapi_;
  mutable std::mutex mutex_;
  std::shared_ptr<const HostPolicy> hosts_;  // guarded by mutex_
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_API_H_
