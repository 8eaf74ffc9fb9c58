// The shape and the numbers of a decoder or an encoder, as its model file gives them.
#ifndef MILLRACE_FORMATS_MODEL_MODEL_CONFIG_H_
#define MILLRACE_FORMATS_MODEL_MODEL_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "formats/model/layer_config.h"
#include "formats/tensors/quant_scheme.h"

namespace millrace {

// The limits of a config: so large that no model reaches them, and small enough that a product of
// any three fits an int64_t. kMaxExperts, of a layer, stands in formats/tensors/tensor_list.h.
inline constexpr int kMaxLayers = 1024;
inline constexpr int kMaxWidth = 1 << 20;  // hidden and ffn size
inline constexpr int kMaxHeads = 1024;
inline constexpr int kMaxHeadSize = 1024;
inline constexpr int kMaxAllExperts = 1 << 17;  // of all layers: lists of tensors name each
inline constexpr int kMaxVocab = 1 << 22;
inline constexpr int kMaxContext = 1 << 24;

// The hidden states of the last layer that an embedding is made of: the mean of all tokens', the
// first token's, [CLS], or the last token's.
enum class Pooling { kMean, kFirst, kLast };

// The purpose that a decoder is run for (--runner); kAuto takes the one that its files say.
enum class ModelRunner { kAuto, kGenerate, kPooling };

// How a decoder makes an embedding of its last hidden states, after the final norm.
struct PoolerConfig {
  Pooling pooling = Pooling::kLast;  // or kMean
  bool normalize = true;             // embeddings are divided by their length
};

// The sizes to which a model's embeddings can be cut, if it learned that (arXiv:2205.13147).
struct MatryoshkaConfig {
  std::vector<int> sizes;  // how many first numbers; empty: any
};

// The function of a linear layer that reads pooled states.
enum class HeadFunction { kIdentity, kTanh, kRelu, kGelu, kSilu, kSigmoid };

// A head that makes one logit of a pair of texts: of the pooled states a linear layer, cls.weight,
// its function, perhaps a layer norm, cls.norm, and a linear layer with one output,
// cls.output.weight. Without an output, cls.weight itself has one row.
struct ClassifierHead {
  bool sigmoid = true;  // scores are the logits' sigmoids; else the logits
  Pooling pooling = Pooling::kFirst;
  bool dense = true;  // cls.weight is there
  bool dense_bias = true;
  HeadFunction function = HeadFunction::kTanh;  // of the dense layer
  bool norm = false;
  bool output = true;
  bool output_bias = true;
};

// A linear layer that makes another embedding of an embedding, dense.N.weight [out, in] and
// dense.N.bias (sentence-transformers' Dense).
struct DenseLayer {
  int in = 0;
  int out = 0;
  bool bias = true;
  HeadFunction function = HeadFunction::kTanh;
  std::string folder;  // that its file lies in, inside of the model's
};

// The numbers of an encoder (BERT, arXiv:1810.04805): each token sees all others of its text, or
// those within a window on both sides, and norms are layer norms. The result is an embedding, or a
// cross-encoder's logit.
struct EncoderConfig {
  int positions = 0;       // rows of position_embd.weight; 0: there is none
  int first_position = 0;  // row of a text's first token; context_length is at most what follows
  int token_types = 0;     // rows of token_types.weight: the first is a text's, the second is
                           // a pair's second text's; where there is but one, all tokens have it; 0:
                           // there is no such table
  // Rows of attn_rel_b.weight, [rows, heads]: what is added to a score, by the bucket of the
  // distance of key and query (T5, arXiv:1910.10683; MPNet, arXiv:2004.09297). 0: nothing is.
  int position_buckets = 0;
  bool norm_bias = true;  // of all norms
  Pooling pooling = Pooling::kMean;
  std::vector<DenseLayer> dense;             // of a pooled embedding, one after the other
  bool normalize = false;                    // embeddings are divided by their length, at last
  std::optional<ClassifierHead> classifier;  // set: a cross-encoder; the three above are not read
};

// A model, whatever its family. Every count is at least 1, and there is a layer.
struct ModelConfig {
  std::string architecture;  // the family's name (families/family.h): "llama", "qwen2", "gemma3" …
  std::string name;          // may be empty
  std::vector<LayerConfig> layers;
  int hidden_size = 0;
  int vocab_size = 0;
  int context_length = 0;           // positions that the model was made for
  bool tied_embeddings = false;     // token_embd.weight is the head as well; else output.weight is
  std::vector<int32_t> end_tokens;  // that end an answer, as a folder says; a GGUF file's tokenizer
                                    // has its own
  std::optional<QuantScheme> quantization;  // nothing: linears are as their tensors' types say
  std::optional<EncoderConfig> encoder;     // set: an encoder
  // Set: a decoder that makes embeddings and has no head; it is then `tied`.
  std::optional<PoolerConfig> pooler;
  std::optional<MatryoshkaConfig> matryoshka;  // of models that make embeddings
  // Stands before every text that an embedding is made of (sentence-transformers' default prompt).
  std::string embedding_prompt;

  // Each bias that the layers' configs call for may be missing, and is then 0.
  bool optional_biases = false;
  double norm_epsilon = 0;
  // Added to norms' stored weights: 1 in Gemma's folders, which store w - 1.
  double norm_offset = 0;

  // Factors of each token's embedding, of what a block adds to the residual, and of the logits,
  // which are then bounded by a soft cap, 0: none (Gemma, Granite).
  double embedding_factor = 1;
  double residual_factor = 1;
  double logit_factor = 1;
  double logit_soft_cap = 0;

  int num_layers() const { return static_cast<int>(layers.size()); }
};

// The shape of attention's heads where all layers of softmax attention have the same, as executors'
// KV caches take it.
struct HeadShape {
  int heads = 0;
  int kv_heads = 0;
  int head_size = 0;

  bool operator==(const HeadShape&) const = default;
};
// Returns the shape that all layers of softmax attention share. UNIMPLEMENTED, naming the layer,
// for a model whose layers differ in it.
absl::StatusOr<HeadShape> SharedHeadShape(const ModelConfig& config);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_MODEL_MODEL_CONFIG_H_
