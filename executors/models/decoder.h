// Decoders of Llama's shape (arXiv:2302.13971): layers of attention and of a feed-forward network,
// or of one of them, added to a residual. Each layer is what its LayerConfig says, whatever the
// model's family; formats/families/ has the families.
#ifndef MILLRACE_EXECUTORS_MODELS_DECODER_H_
#define MILLRACE_EXECUTORS_MODELS_DECODER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "executors/models/model.h"

namespace millrace {

// Loads a decoder, whose weights `placer` places by GGUF's tensor names. UNIMPLEMENTED, naming the
// layer, for layers that no decoder here has: norms of the sum of the residual and what a block
// adds, or a network of GELU without a gate.
absl::StatusOr<std::unique_ptr<Model>> LoadDecoder(const ModelConfig& config, int max_model_len,
                                                   DecoderPlacer& placer);

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_MODELS_DECODER_H_
