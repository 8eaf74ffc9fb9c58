// The server as its endpoints (HTTP and gRPC) see it: its models, its state, its keys.
#ifndef MILLRACE_SERVER_FRONTEND_H_
#define MILLRACE_SERVER_FRONTEND_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/infer_engine.h"
#include "engine/served_model.h"

namespace millrace {

class Metrics;
class Tenant;

// The scope that a call needs of its key. Every key has kAny.
enum class Scope { kAny, kInfer, kMetrics, kAdmin };
inline constexpr size_t kNumScopes = 4;

// A client shows these to say who it is.
struct Credentials {
  // The value of the header, or of the metadata: "Bearer <key>".
  std::string_view authorization;
  // The names that its certificate stands for, which one of --ssl-ca-certs has signed; empty: it
  // showed none.
  std::span<const std::string> identities = {};
};

// Thread-safe; outlives the endpoints.
class Frontend {
 public:
  virtual ~Frontend() = default;

  // Returns the language model that Find finds. InvalidArgument, with its kind, for a model of the
  // other kind.
  absl::StatusOr<Engine*> FindEngine(std::string_view model) const;
  // Returns the tensor model of this name, with errors as FindEngine's.
  absl::StatusOr<InferEngine*> FindInferEngine(std::string_view model) const;

  // Returns the model of this name, of either kind; NotFound names it and those there are. Empty:
  // the only model.
  virtual absl::StatusOr<ServedModel*> Find(std::string_view model) const = 0;
  virtual std::vector<ServedModel*> models() const = 0;

  // Returns the names that requests may give the model; the first is its own.
  virtual std::vector<std::string> names(const ServedModel& model) const {
    return {model.model_name()};
  }

  // Returns whether the server has warmed up and is not about to end.
  virtual bool ready() const = 0;
  // Returns whether new work is taken: while the server is ready, and during --drain-delay.
  virtual bool takes_work() const { return ready(); }
  // Returns what the server does before it is ready, "fetching org/name: 34 % of 1200 MiB"; may be
  // empty.
  virtual std::string loading() const { return ""; }
  // Returns the settings whose files could not be read the last time, so that what was read before
  // stays in force.
  virtual std::vector<std::string> stale_files() const { return {}; }
  // Returns false if an engine is stalled or failed.
  virtual bool live() const = 0;
  // Returns whether --drain-delay is over: running streams finish, new work is refused.
  virtual bool draining() const = 0;
  // Returns whether SIGTERM came, so that clients had better go elsewhere.
  virtual bool leaving() const { return draining(); }

  // Returns OK, Unauthenticated, or PermissionDenied if the key lacks the scope. A certificate
  // stands for a key where none is sent. Compares in constant time. With OK sets `tenant`, unless
  // it is null, to the key's: to null where keys have none.
  virtual absl::Status Authorize(const Credentials& shown, Scope scope,
                                 std::shared_ptr<const Tenant>* tenant) const = 0;
  absl::Status Authorize(std::string_view authorization) const {
    return Authorize({.authorization = authorization}, Scope::kAny, nullptr);
  }
  // Returns whether the administration's own listener wants keys, too.
  virtual bool guards_admin() const { return false; }

  virtual Metrics& metrics() = 0;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_FRONTEND_H_
