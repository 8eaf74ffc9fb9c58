// Gemma 2 (arXiv:2408.00118) and the text of Gemma 3 (arXiv:2503.19786): blocks as Llama's, with
// norms before and after each of their two parts, a GELU gate and scaled embeddings; layers with a
// window and layers without take turns. Gemma 2 bounds scores and logits by soft caps; Gemma 3
// norms q and k of each head instead, and turns the layers with a window by another base.
#ifndef MILLRACE_EXECUTORS_MODELS_GEMMA_H_
#define MILLRACE_EXECUTORS_MODELS_GEMMA_H_

#include <memory>

#include "absl/status/statusor.h"
#include "executors/models/model.h"

namespace millrace {

absl::StatusOr<std::unique_ptr<Model>> LoadGemma(const ModelConfig& config, int max_model_len,
                                                 WeightPlacer& placer);

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_MODELS_GEMMA_H_
