#include "executors/step_limits.h"

#include "base/strings.h"

namespace millrace {

absl::StatusOr<StepLimits> MakeStepLimits(const ModelConfig& config, const CommonSpec& device) {
  if (device.max_model_len > config.context_length) {
    return absl::InvalidArgumentError(StrCat("max_model_len is ", device.max_model_len,
                                             ", allowed: up to the model's ",
                                             config.context_length));
  }
  return StepLimits{
      .max_num_seqs = device.max_num_seqs,
      .max_num_batched_tokens = device.max_num_batched_tokens,
      .max_model_len = device.max_model_len > 0 ? device.max_model_len : config.context_length,
      .num_blocks = 0,
      .block_size = device.block_size,
      .vocab_size = config.vocab_size,
      .embedding_size = config.encoder.has_value() ? config.hidden_size : 0};
}

}  // namespace millrace
