// A decoder or an encoder, for devices that have the operations of both.
#ifndef MILLRACE_EXECUTORS_MODELS_ANY_MODEL_H_
#define MILLRACE_EXECUTORS_MODELS_ANY_MODEL_H_

#include <memory>
#include <variant>

#include "absl/status/statusor.h"
#include "executors/encoder_ops.h"
#include "executors/models/model.h"
#include "formats/model_config.h"

namespace millrace {

using AnyModel = std::variant<std::unique_ptr<Model>, std::unique_ptr<Encoder>>;

// As LoadModel does (model.h), and encoders.
absl::StatusOr<AnyModel> LoadAnyModel(const ModelConfig& config, int max_model_len,
                                      EncoderPlacer& placer);

// One step.
inline void Forward(const AnyModel& model, EncoderOps& ops, const StepInput& input) {
  std::visit([&](const auto& kind) { kind->Forward(ops, input); }, model);
}

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_MODELS_ANY_MODEL_H_
