// The Llama family (arXiv:2302.13971): blocks of grouped-query attention with rotary positions and
// a gated feed-forward network, each after a norm. What others of this shape do besides, their
// configs say: Mistral, Qwen2 and Phi-3 attend within windows; Qwen2 adds biases to q, k and v;
// Qwen3 (arXiv:2505.09388) norms q and k of each head before the rotation; Phi-3
// (arXiv:2404.14219) turns a part of each head; SmolLM3 leaves some layers without positions;
// Granite multiplies embeddings, scores, what blocks add, and logits. Tensor names are GGUF's.
#ifndef MILLRACE_EXECUTORS_MODELS_LLAMA_H_
#define MILLRACE_EXECUTORS_MODELS_LLAMA_H_

#include <memory>

#include "absl/status/statusor.h"
#include "executors/models/model.h"

namespace millrace {

absl::StatusOr<std::unique_ptr<Model>> LoadLlama(const ModelConfig& config, int max_model_len,
                                                 WeightPlacer& placer);

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_MODELS_LLAMA_H_
