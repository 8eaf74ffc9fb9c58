// Decoders of the Llama family's shape (arXiv:2302.13971): layers of grouped-query attention with
// rotary positions and a gated feed-forward network, both added to a residual. Families differ in
// where they norm and in the gate's function, which is a DecoderShape; in everything else that
// their ModelConfig says:
//   Mistral, Qwen2, Phi-3 (arXiv:2404.14219)  windows; Qwen2: biases of q, k and v; Phi-3: a part
//                              of each head turned
//   Qwen3 (arXiv:2505.09388)   norms of q and k of each head before the rotation
//   SmolLM3                    layers without positions
//   Granite                    factors of embeddings, scores, what a part adds, and logits
//   OLMo 2 (arXiv:2501.00656)  takes the residual as it is and norms what a part adds; q and k
//                              normed over all their heads together
//   Gemma 2 (arXiv:2408.00118), Gemma 3's text (arXiv:2503.19786)
//                              norms before and after each part, a GELU gate, scaled embeddings,
//                              layers with and without a window in turn; Gemma 2: soft caps of
//                              scores and logits; Gemma 3: Qwen3's norms, and another base for
//                              layers with a window
#ifndef MILLRACE_EXECUTORS_MODELS_DECODER_H_
#define MILLRACE_EXECUTORS_MODELS_DECODER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "executors/models/model.h"

namespace millrace {

struct DecoderShape {
  bool norms_before = true;  // of what a part reads: "attn_norm", "ffn_norm"
  bool norms_after = false;  // of what a part adds: "post_attention_norm", "post_ffw_norm"
  GateFunction gate = GateFunction::kSilu;
};

// Tensor names are GGUF's.
absl::StatusOr<std::unique_ptr<Model>> LoadDecoder(const DecoderShape& shape,
                                                   const ModelConfig& config, int max_model_len,
                                                   WeightPlacer& placer);

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_MODELS_DECODER_H_
