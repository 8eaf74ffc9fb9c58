// A model family: its checkpoint's names and its forward pass, written once for every device.
#ifndef MILLRACE_EXECUTORS_MODELS_MODEL_H_
#define MILLRACE_EXECUTORS_MODELS_MODEL_H_

#include <memory>

#include "absl/status/statusor.h"
#include "executors/ops.h"
#include "formats/model_config.h"

namespace millrace {

class Model {
 public:
  virtual ~Model() = default;

  // One step, from the input's tokens to its samples.
  virtual void Forward(Ops& ops, const StepInput& input) const = 0;
};

// The family that `config` names, for sequences of up to `max_model_len` positions, its weights
// asked of `placer`. UNIMPLEMENTED for one that we do not have.
absl::StatusOr<std::unique_ptr<Model>> LoadModel(const ModelConfig& config, int max_model_len,
                                                 WeightPlacer& placer);

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_MODELS_MODEL_H_
