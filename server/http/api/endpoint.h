// An endpoint is a method of a path: what it asks of a request before the body is read, what
// /openapi.json says of it, and the function that answers it. A protocol's endpoints stand beside
// their handlers; all_protocols.h lists the protocols; Api (api.h) checks and dispatches.
#ifndef MILLRACE_SERVER_HTTP_API_ENDPOINT_H_
#define MILLRACE_SERVER_HTTP_API_ENDPOINT_H_

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/frontend.h"
#include "server/http/api/http_message.h"

namespace millrace {

class Api;

// A request that has passed the checks of its endpoint, with its whole body.
struct HttpCall {
  const Api& api;  // of the listener that took the request
  const HttpRequestHead& head;
  const std::string& body;
  const Wake& wake;
};

// The right that a request must show to be answered. There is no default, so that an endpoint that
// does not state its access does not compile.
class Access {
 public:
  // The request must show a key with this scope, where keys are set.
  constexpr Access(Scope scope) : scope_(scope) {}
  // The request needs no key, and may name any Host: a probe, or a page without secrets.
  static constexpr Access Open() {
    Access access(Scope::kAny);
    access.open_ = true;
    return access;
  }

  constexpr bool open() const { return open_; }
  // Returns the scope of the key that is needed, unless open().
  constexpr Scope scope() const { return scope_; }

 private:
  Scope scope_;
  bool open_ = false;
};

// The kinds of listeners that a server has.
enum class Listener : unsigned {
  kPublic = 1,   // --http-port
  kAdmin = 2,    // --admin-port, always on loopback: a key is needed only with --keys
  kMetrics = 4,  // --metrics-port: no key is needed
};

// A set of listeners.
class Listeners {
 public:
  constexpr Listeners(std::initializer_list<Listener> listeners) {
    for (const Listener one : listeners) bits_ |= static_cast<unsigned>(one);
  }
  constexpr bool Has(Listener one) const { return (bits_ & static_cast<unsigned>(one)) != 0; }

 private:
  unsigned bits_ = 0;
};

// The media types that a body may have.
enum class BodyMedia {
  kAny,            // the type is not checked: no body is read, or any text
  kJson,           // application/json
  kJsonOrTensors,  // or octets, or no type: tensors in binary may stand behind the JSON
};

struct BodyRule {
  // A longer body must be asked for: it takes memory that others wait for before it is read, and
  // probes would take it without a key.
  static constexpr uint64_t kSmallBodyBytes = 64 << 10;
  static constexpr uint64_t kListenersLimit = std::numeric_limits<uint64_t>::max();

  BodyMedia media = BodyMedia::kAny;
  uint64_t max_bytes = kSmallBodyBytes;  // the limit of the listener holds as well
};

// The part of /openapi.json that does not follow from an endpoint's other members. Schemas are
// named as in openapi/*.json.
struct OperationDoc {
  std::string_view summary;
  std::string_view request = {};     // the schema of the body; empty: no JSON
  std::string_view response = {};    // the schema of the answer; empty: no JSON
  std::string_view stream = {};      // the schema of an event, where `stream` asks for events
  std::string_view media = {};       // of an answer that is not JSON, "text/css,image/svg+xml"
  std::string_view body_media = {};  // of a body that is not JSON
  int status = 200;                  // of the answer
  bool may_be_missing = false;       // 404 also where neither the path nor the body names a thing
  std::string_view parameters = {};  // a JSON array: those beside the path's and the usual ones
  std::string_view links = {};       // a JSON object: the links of the answer
};

struct HttpEndpoint {
  std::string_view method;
  // The path as the document names it. Of "/v1/models/{model}" the part before the brace is fixed,
  // and all paths that begin with it are the endpoint's.
  std::string_view path;
  Access access;
  Listeners listeners = {Listener::kPublic};
  bool serving = false;  // refused while the server warms up or drains
  bool renders = false;  // the answer is made of much: on a thread for such answers
  BodyRule body = {};
  OperationDoc doc = {};
  std::function<Handled(const HttpCall& call)> handle = nullptr;

  // Returns the fixed part of the path.
  constexpr std::string_view fixed_path() const { return path.substr(0, path.find('{')); }
};

// Returns an endpoint that makes a model work on a body of JSON: a POST for keys that may infer.
inline HttpEndpoint InferenceEndpoint(std::string_view path, const OperationDoc& doc,
                                      std::function<Handled(const HttpCall&)> handle,
                                      Listeners listeners = {Listener::kPublic}) {
  return {.method = "POST",
          .path = path,
          .access = Scope::kInfer,
          .listeners = listeners,
          .serving = true,
          .body = {.media = BodyMedia::kJson, .max_bytes = BodyRule::kListenersLimit},
          .doc = doc,
          .handle = std::move(handle)};
}

// How the errors of a protocol look, those of paths included that it does not have.
struct ErrorShape {
  bool (*owns)(std::string_view path) = nullptr;         // whether the path is the protocol's
  std::string (*body)(const ApiError& error) = nullptr;  // returns the error's JSON
  std::string_view schema;
};

struct HttpProtocol {
  std::vector<HttpEndpoint> endpoints;
  std::optional<ErrorShape> errors = std::nullopt;  // nothing: they look like OpenAI's
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_API_ENDPOINT_H_
