// The layers of a model as plain values: what each one computes, and its numbers.
#ifndef MILLRACE_FORMATS_LAYER_CONFIG_H_
#define MILLRACE_FORMATS_LAYER_CONFIG_H_

#include <optional>
#include <variant>

#include "formats/rope_config.h"

namespace millrace {

// Which norms q and k pass before their rotation: none, one of each head's values, or one of all
// heads' values together.
enum class QkNorm { kNone, kHead, kWhole };

// Grouped-query attention (arXiv:2305.13245) with a softmax over all scores.
struct SoftmaxAttention {
  int heads = 0;
  int kv_heads = 0;                // divides heads
  int head_size = 0;               // heads * head_size need not be the hidden size
  double scale = 0;                // of the scores, > 0
  double soft_cap = 0;             // of the scores; 0: none
  int window = 0;                  // a token sees itself and the window - 1 before it; 0: all
  std::optional<RopeConfig> rope;  // nothing: q and k are not rotated
  bool qkv_bias = false;
  QkNorm qk_norm = QkNorm::kNone;
  bool fused_qkv = false;  // q, k and v are one tensor, blk.N.attn_qkv.weight
};

// f(gate) * up, and then down. f is SiLU, or GELU as approximated by its tanh.
struct GatedFeedForward {
  int size = 0;
  bool gelu = false;
  bool fused_gate_up = false;  // the gate's rows and then up's are one tensor, blk.N.ffn_up.weight
};

// gelu(up) and then down, both with biases (BERT).
struct GeluFeedForward {
  int size = 0;
};

// Where a layer norms its two blocks, attention and the feed-forward network.
enum class NormPlacement {
  kPre,       // what a block reads (Llama)
  kOutput,    // what a block adds to the residual (OLMo 2)
  kSandwich,  // both (Gemma, GLM-4)
  kPost,      // the sum of the residual and what a block adds (BERT)
};
inline bool NormsInput(NormPlacement norms) {
  return norms == NormPlacement::kPre || norms == NormPlacement::kSandwich;
}
inline bool NormsOutput(NormPlacement norms) {
  return norms == NormPlacement::kOutput || norms == NormPlacement::kSandwich;
}

struct LayerConfig {
  std::variant<SoftmaxAttention> attention;
  std::variant<GatedFeedForward, GeluFeedForward> feed_forward;
  NormPlacement norms = NormPlacement::kPre;

  // The alternatives by name; the layer must have them.
  const SoftmaxAttention& softmax() const { return std::get<SoftmaxAttention>(attention); }
  SoftmaxAttention& softmax() { return std::get<SoftmaxAttention>(attention); }
  GatedFeedForward& gated() { return std::get<GatedFeedForward>(feed_forward); }

  // Rows of the feed-forward network's down projection's input, whatever its kind.
  int ffn_size() const {
    return std::visit([](const auto& ffn) { return ffn.size; }, feed_forward);
  }
};

}  // namespace millrace

#endif  // MILLRACE_FORMATS_LAYER_CONFIG_H_
