// What a model file says about the shape and the numbers of a decoder or an encoder.
#ifndef MILLRACE_FORMATS_MODEL_CONFIG_H_
#define MILLRACE_FORMATS_MODEL_CONFIG_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "formats/gguf.h"
#include "formats/rope_config.h"

namespace millrace {

// What a config may claim: so large that no model reaches it, and small enough that a product of
// any three fits an int64_t.
inline constexpr int kMaxLayers = 1024;
inline constexpr int kMaxWidth = 1 << 20;  // hidden and ffn size
inline constexpr int kMaxHeads = 1024;
inline constexpr int kMaxHeadSize = 1024;
inline constexpr int kMaxVocab = 1 << 22;
inline constexpr int kMaxContext = 1 << 24;

// How the layers' linears of a checkpoint in FP8 (E4M3) are scaled; weight = code * scale.
struct Fp8Scheme {
  // One scale for a tensor, for each output row, or for each 128x128 elements.
  enum class Weights { kTensor, kChannel, kBlock };
  Weights weights = Weights::kTensor;
  // Static: one scale for a linear's input, known before (input_scale). Else they are made from
  // each token: one, or with blocks of weights one for each 128 columns.
  bool static_activations = false;
};
inline constexpr int kFp8Block = 128;

// What is normed of q and k, before they are turned: nothing, each head for itself, or all heads'
// values together.
enum class QkNorm { kNone, kHead, kWhole };

// Of which hidden states of the last layer an encoder's embedding is made: the mean of all tokens',
// or the first token's, [CLS].
enum class Pooling { kMean, kFirst };

// What makes a model an encoder (BERT, arXiv:1810.04805): each token sees all others of its text,
// positions are learned, blocks are normed (layer norm, with biases) after what they add, the
// feed-forward network has no gate, and its function is GELU. The result is an embedding.
struct EncoderConfig {
  int positions = 0;    // rows of position_embd.weight; context_length is at most as many
  int token_types = 0;  // rows of token_types.weight; all tokens of a text have the first
  Pooling pooling = Pooling::kMean;
  bool normalize = false;  // embeddings are divided by their length
};

// Every count is at least 1. What a model does where it differs from Llama; executors that cannot
// do all of it refuse what they cannot by name.
struct ModelConfig {
  std::string architecture;  // the family, as GGUF names it: "llama", "qwen2", "gemma3" …
  std::string name;          // may be empty
  int layers = 0;
  int hidden_size = 0;
  int ffn_size = 0;
  int heads = 0;
  int kv_heads = 0;   // divides heads
  int head_size = 0;  // even; heads * head_size need not be hidden_size
  int vocab_size = 0;
  int context_length = 0;           // positions that the model was made for
  bool tied_embeddings = false;     // token_embd.weight is the head as well; else output.weight is
  std::vector<int32_t> end_tokens;  // that end an answer, as a folder says; a GGUF file's tokenizer
                                    // has its own
  std::optional<Fp8Scheme> fp8;     // nothing: linears are of the types that their tensors say
  // Set: an encoder. Beside it and the fields above, attention_scale and rms_epsilon (of its layer
  // norms) hold; no other differs from its default, and no position is turned.
  std::optional<EncoderConfig> encoder;

  // Positions. The pair i of a head is its elements (2i, 2i + 1) where interleaved (GGUF stores
  // Llama's q and k so), else (i, i + rope_dimensions / 2).
  int rope_dimensions = 0;  // even, <= head_size: how many of a head's first elements are turned
  bool rope_interleaved = true;
  RopeConfig rope;
  std::optional<RopeConfig> window_rope;  // of layers with a window, where it is another (Gemma 3)
  std::vector<bool> unturned;             // [layers]: has no positions (SmolLM3); empty: none is so

  // Attention.
  std::vector<int> windows;       // [layers]: how many tokens a token sees, itself included, 0: all
                                  // before it; empty: 0 in all layers
  double attention_scale = 0;     // of the scores, > 0
  double attention_soft_cap = 0;  // of the scores, 0: none
  bool qkv_bias = false;
  QkNorm qk_norm = QkNorm::kNone;
  bool fused_qkv = false;  // q, k and v are one tensor, blk.N.attn_qkv.weight

  // Blocks: what is normed before attention and before the feed-forward network, and of what they
  // add to the residual (Gemma: both; OLMo 2: only the latter).
  bool pre_norms = true;
  bool post_norms = false;
  double rms_epsilon = 0;
  double norm_offset = 0;      // what norms' weights are stored less of: 1 in Gemma's folders
  bool gelu_gate = false;      // the gate's function is GELU, approximated by tanh; else SiLU
  bool fused_gate_up = false;  // the gate's rows and then up's are one tensor, blk.N.ffn_up.weight

  // Factors, of each token's embedding, of what a block adds to the residual, and of the logits,
  // which are then bounded by a soft cap, 0: none (Gemma, Granite).
  double embedding_factor = 1;
  double residual_factor = 1;
  double logit_factor = 1;
  double logit_soft_cap = 0;

  int Window(int layer) const { return windows.empty() ? 0 : windows[layer]; }
  bool Turned(int layer) const { return unturned.empty() || !unturned[layer]; }
};

// Of a GGUF file: reads and checks the metadata, then every tensor against it (ValidateTensors):
// after OK, a family can look its tensors up by name without another check. What changes the maths
// and is not built (another architecture, experts, …) is
// refused by name with UNIMPLEMENTED. Keys, tensors and what the files leave unsaid are
// llama.cpp's.
absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_MODEL_CONFIG_H_
