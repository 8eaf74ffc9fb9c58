// BERT (arXiv:1810.04805) and what is trained from it to embed texts (Sentence-BERT,
// arXiv:1908.10084; MiniLM, BGE, GTE, E5): blocks of attention over the whole text and of a
// feed-forward network, each normed after it was added. Tensor names are GGUF's.
#ifndef MILLRACE_EXECUTORS_MODELS_BERT_H_
#define MILLRACE_EXECUTORS_MODELS_BERT_H_

#include <memory>

#include "absl/status/statusor.h"
#include "executors/encoder_ops.h"
#include "formats/model_config.h"

namespace millrace {

// Loads an encoder, whose weights `placer` places. Requires config.encoder.
absl::StatusOr<std::unique_ptr<Encoder>> LoadBert(const ModelConfig& config, EncoderPlacer& placer);

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_MODELS_BERT_H_
