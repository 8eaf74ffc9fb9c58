// A model that the server serves: a language model or encoder (Engine), or a tensor model
// (InferEngine).
#ifndef MILLRACE_ENGINE_SERVED_MODEL_H_
#define MILLRACE_ENGINE_SERVED_MODEL_H_

#include <string>

#include "base/clock.h"

namespace millrace {

class Engine;
class InferEngine;

enum class Health {
  kServing,
  kStalled,  // there is work, and no step finished for --stall-timeout
  kFailed,   // the device has failed: the process is about to end
};

// A language model (Engine) or a model of tensors (InferEngine). Thread-safe.
class ServedModel {
 public:
  virtual ~ServedModel() = default;

  virtual const std::string& model_name() const = 0;
  virtual Health health() const = 0;

  // Declare what the model serves: exactly one of the two is not null.
  virtual Engine* language() { return nullptr; }
  virtual InferEngine* tensors() { return nullptr; }

  // Refuses new work from now on; what was accepted goes on.
  virtual void BeginDrain() = 0;
  // Waits until no work is left, at most until `deadline`. Returns false if some still is.
  virtual bool WaitIdle(SteadyTime deadline) = 0;
  // Ends what still runs or waits, since the server ends.
  virtual void CancelAll() = 0;
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_SERVED_MODEL_H_
