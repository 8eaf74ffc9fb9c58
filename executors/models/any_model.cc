#include "executors/models/any_model.h"

#include "executors/models/bert.h"

namespace millrace {

absl::StatusOr<AnyModel> LoadAnyModel(const ModelConfig& config, int max_model_len,
                                      EncoderPlacer& placer) {
  if (config.encoder.has_value()) return LoadBert(config, placer);
  return LoadModel(config, max_model_len, placer);
}

}  // namespace millrace
