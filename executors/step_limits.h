// Derives a step's limits from the model and the settings.
#ifndef MILLRACE_EXECUTORS_STEP_LIMITS_H_
#define MILLRACE_EXECUTORS_STEP_LIMITS_H_

#include <optional>

#include "absl/status/statusor.h"
#include "executors/device_spec.h"
#include "executors/executor.h"
#include "formats/model/model_config.h"
#include "plan/step_plan.h"

namespace millrace {

// Returns all limits except num_blocks and the state's groups, which are empty and left to the
// device, which knows its memory.
// Returns InvalidArgument if a setting exceeds the model's capability.
absl::StatusOr<StepLimits> MakeStepLimits(const ModelConfig& config, const CommonSpec& device);

// Returns ModelInfo::score.
std::optional<ScoreFunction> ScoreFunctionOf(const ModelConfig& config);

// Returns ModelInfo::embedding.
EmbeddingTraits EmbeddingTraitsOf(const ModelConfig& config);

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_STEP_LIMITS_H_
