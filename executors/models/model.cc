#include "executors/models/model.h"

#include "base/strings.h"
#include "executors/models/llama.h"

namespace millrace {

absl::StatusOr<std::unique_ptr<Model>> LoadModel(const ModelConfig& config, WeightPlacer& placer) {
  if (config.architecture == "llama" || config.architecture == "qwen3") {
    return LoadLlama(config, placer);
  }
  return absl::UnimplementedError(
      StrCat("the model's architecture is ", config.architecture, ", allowed: llama, qwen3"));
}

}  // namespace millrace
