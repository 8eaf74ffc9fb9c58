// Encoders: blocks of attention over the whole text, or over a window on both sides of a token, and
// of a feed-forward network, normed before or after (BERT, arXiv:1810.04805, and its descendants).
// Tensor names are GGUF's.
#ifndef MILLRACE_EXECUTORS_MODELS_ENCODER_H_
#define MILLRACE_EXECUTORS_MODELS_ENCODER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "executors/encoder_ops.h"
#include "formats/model/model_config.h"

namespace millrace {

// Loads an encoder, whose weights `placer` places, for texts of up to `max_model_len` tokens.
// Requires config.encoder.
absl::StatusOr<std::unique_ptr<Encoder>> LoadEncoder(const ModelConfig& config, int max_model_len,
                                                     EncoderPlacer& placer);

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_MODELS_ENCODER_H_
