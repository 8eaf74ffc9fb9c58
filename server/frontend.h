// What the doors (HTTP and gRPC) see of the server: its engines, its state, its keys.
#ifndef MILLRACE_SERVER_FRONTEND_H_
#define MILLRACE_SERVER_FRONTEND_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine.h"

namespace millrace {

class InferEngine;
class Metrics;

// Thread-safe; outlives the doors.
class Frontend {
 public:
  virtual ~Frontend() = default;

  // The engine that serves this model name; NotFound names it. Empty: the only model. Where the
  // model is of the other kind: InvalidArgument, saying which.
  virtual absl::StatusOr<Engine*> FindEngine(std::string_view model) const = 0;
  virtual std::vector<Engine*> engines() const = 0;

  // The same for models of tensors.
  virtual absl::StatusOr<InferEngine*> FindInferEngine(std::string_view model) const = 0;
  virtual std::vector<InferEngine*> infer_engines() const = 0;

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
