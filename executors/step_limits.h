// What a model and the settings together allow a step to be.
#ifndef MILLRACE_EXECUTORS_STEP_LIMITS_H_
#define MILLRACE_EXECUTORS_STEP_LIMITS_H_

#include "absl/status/statusor.h"
#include "executors/factory.h"
#include "formats/model_config.h"
#include "scheduler/step_plan.h"

namespace millrace {

// All but num_blocks, which is 0: that is for the device, which knows its memory. InvalidArgument:
// a setting asks for more than the model knows.
absl::StatusOr<StepLimits> MakeStepLimits(const ModelConfig& config, const DeviceSpec& device);

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_STEP_LIMITS_H_
