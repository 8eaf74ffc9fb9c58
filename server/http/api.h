// Answers HTTP requests: routes paths, authenticates, checks limits.
#ifndef MILLRACE_SERVER_HTTP_API_H_
#define MILLRACE_SERVER_HTTP_API_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "server/frontend.h"
#include "server/http/host_policy.h"
#include "server/http/http_message.h"
#include "server/http/openai_request.h"
#include "server/http/response_store.h"

namespace millrace {

struct ApiOptions {
  bool admin = false;  // the operator's listener: other paths, and no key
  uint64_t max_body_bytes = 32 << 20;
  UnknownFields unknown_fields = UnknownFields::kRefuse;
  bool auto_tool_choice = true;
};

// Where a request is handled: kSmall where streams are written, since it takes microseconds.
enum class RequestCost { kSmall, kMedium, kLarge, kMetrics };

// Thread-safe.
class Api {
 public:
  Api(Frontend& frontend, HostPolicy hosts, ApiOptions options)
      : frontend_(frontend), hosts_(std::move(hosts)), options_(options) {}

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

  const ApiOptions& options() const { return options_; }
  Frontend& frontend() const { return frontend_; }
  bool draining() const { return frontend_.draining(); }

 private:
  struct Route;
  const Route* FindRoute(const HttpRequestHead& head) const;
  std::optional<HttpResponse> CheckHead(const HttpRequestHead& head) const;
  std::optional<HttpResponse> CheckBody(const HttpRequestHead& head) const;
  std::optional<HttpResponse> CheckServing() const;
  absl::Status SetCaller(const HttpRequestHead& head, std::shared_ptr<const Tenant>& tenant,
                         std::optional<absl::Time>& deadline) const;

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
  Handled CountTokens(const std::string& body, const Wake& wake) const;
  Handled CreateResponse(const HttpRequestHead& head, const std::string& body,
                         const Wake& wake) const;
  Handled GetResponse(const HttpRequestHead& head) const;
  Handled DeleteResponse(const HttpRequestHead& head) const;
  Handled Embed(const HttpRequestHead& head, const std::string& body, const Wake& wake) const;
  Handled Tokenize(const std::string& body, const Wake& wake) const;
  Handled Detokenize(const std::string& body, const Wake& wake) const;

  Frontend& frontend_;
  const HostPolicy hosts_;
  const ApiOptions options_;
  const std::shared_ptr<ResponseStore> responses_ = std::make_shared<ResponseStore>();
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_API_H_
