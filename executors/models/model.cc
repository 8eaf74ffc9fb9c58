#include "executors/models/model.h"

#include "base/strings.h"
#include "executors/models/decoder.h"

namespace millrace {

absl::StatusOr<std::unique_ptr<Model>> LoadModel(const ModelConfig& config, int max_model_len,
                                                 DecoderPlacer& placer) {
  if (config.encoder.has_value()) {
    return absl::UnimplementedError(StrCat("the model, ", config.architecture,
                                           ", is an encoder; allowed on this device: decoders "
                                           "(encoders run with --device cpu or torch)"));
  }
  if (config.pooler.has_value()) {
    return absl::UnimplementedError(
        StrCat("the model, ", config.architecture,
               ", makes embeddings; allowed on this device: decoders that generate (--runner "
               "generate; embeddings are made with --device cpu)"));
  }
  return LoadDecoder(config, max_model_len, placer);
}

}  // namespace millrace
