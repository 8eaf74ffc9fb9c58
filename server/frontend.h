// The server as its endpoints (HTTP and gRPC) see it: its models, its state, its keys.
#ifndef MILLRACE_SERVER_FRONTEND_H_
#define MILLRACE_SERVER_FRONTEND_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/infer_engine.h"
#include "engine/served_model.h"

namespace millrace {

class Metrics;

// Thread-safe; outlives the endpoints.
class Frontend {
 public:
  virtual ~Frontend() = default;

  // The language model that Find finds. InvalidArgument, saying which kind it is, where it is of
  // the other kind.
  absl::StatusOr<Engine*> FindEngine(std::string_view model) const;
  // The same for a model of tensors.
  absl::StatusOr<InferEngine*> FindInferEngine(std::string_view model) const;

  // The model of this name, of either kind; NotFound names it and those there are. Empty: the only
  // model.
  virtual absl::StatusOr<ServedModel*> Find(std::string_view model) const = 0;
  virtual std::vector<ServedModel*> models() const = 0;

  // After warm-up, before drain.
  virtual bool ready() const = 0;
  // False when an engine is stalled or failed.
  virtual bool live() const = 0;
  // SIGTERM came: running streams finish, new work is refused.
  virtual bool draining() const = 0;

  // OK, or Unauthenticated. `authorization` is the header's (or metadata's) value, "Bearer <key>".
  // Compares in constant time.
  virtual absl::Status Authorize(std::string_view authorization) const = 0;

  virtual Metrics& metrics() = 0;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_FRONTEND_H_
