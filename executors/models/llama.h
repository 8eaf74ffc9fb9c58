// The Llama family (arXiv:2302.13971): pre-norm blocks of grouped-query attention with rotary
// positions and a gated feed-forward network; Qwen3's dense models (arXiv:2505.09388) norm q and k
// before the rotation. Tensor names are GGUF's.
#ifndef MILLRACE_EXECUTORS_MODELS_LLAMA_H_
#define MILLRACE_EXECUTORS_MODELS_LLAMA_H_

#include <memory>

#include "absl/status/statusor.h"
#include "executors/models/model.h"

namespace millrace {

absl::StatusOr<std::unique_ptr<Model>> LoadLlama(const ModelConfig& config, WeightPlacer& placer);

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_MODELS_LLAMA_H_
