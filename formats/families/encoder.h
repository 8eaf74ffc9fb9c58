// The parts that families of encoders share: their layers, their tensors, and the keys of GGUF
// files.
#ifndef MILLRACE_FORMATS_FAMILIES_ENCODER_H_
#define MILLRACE_FORMATS_FAMILIES_ENCODER_H_

#include <functional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "formats/families/family.h"

namespace millrace {

inline constexpr int kMaxTokenTypes = 1024;
inline constexpr double kLeastLayerNormEpsilon = 1e-15;
inline constexpr double kMostLayerNormEpsilon = 0.1;

// The numbers of an encoder's layers, which differ at most in their windows and rotations.
struct EncoderLayers {
  int layers = 0;
  int heads = 0;
  int ffn_size = 0;
  std::string_view heads_field;  // the file's name of `heads`, for errors
};

// The names of config.json's fields in a family, and what they are where a config leaves them out.
struct HfEncoderNames {
  const char* layers = "num_hidden_layers";
  const char* hidden_size = "hidden_size";
  const char* ffn_size = "intermediate_size";
  const char* heads = "num_attention_heads";
  const char* positions = "max_position_embeddings";
  const char* epsilon = "layer_norm_eps";  // nullptr: a family without the field
  int context = 0;                         // 0: a config has to say it
  double norm_epsilon = 1e-12;
};

// Reads the sizes of a config.json, with layers as MakeEncoderLayers makes them, and refuses a
// quantized model. The family adds positions and types of tokens.
absl::StatusOr<ModelConfig> ReadHfEncoder(const HfReader& config, const HfEncoderNames& names);

// Returns BERT's layers for the config's hidden size: attention over the whole text, the product of
// GELU, norms behind the residual's sums, and biases. The family changes what differs.
absl::StatusOr<std::vector<LayerConfig>> MakeEncoderLayers(const EncoderLayers& numbers,
                                                           int hidden_size);

// Reads the keys that encoders' GGUF files share, and which of the tables, heads and fused tensors
// the file has. Embeddings are normalized, as llama.cpp's server does, which no key of the file
// says. Scores of pairs are logits, as llama.cpp's are, by a head of the pooling and function of
// `head` where no key says another.
absl::StatusOr<ModelConfig> ReadEncoderGguf(const GgufReader& reader,
                                            const ClassifierHead& head = {});

// Gives each layer a rotation of its whole heads, in halves, by its base. INVALID_ARGUMENT for
// heads of an odd size.
absl::Status SetRotations(const std::function<double(int layer)>& theta, ModelConfig* model);

// Refuses a scaled rotation in a GGUF file.
absl::Status RefuseRopeScaling(const GgufReader& reader);

// Returns the tensors that the config calls for. Shapes, outermost first, with H = hidden_size and
// F = the feed-forward network's size; norms have a .bias if EncoderConfig::norm_bias:
//   token_embd.weight                                               [vocab_size, H]
//   position_embd.weight, token_types.weight (if it has such rows)  [positions, H], [token_types,
//   H] token_embd_norm                                                 [H] attn_rel_b.weight (if
//   position_buckets)                         [position_buckets, heads] blk.N.attn_norm (but of
//   layer 0), blk.N.ffn_norm, output_norm (if norms are before)   [H] blk.N.attn_output_norm,
//   blk.N.layer_output_norm (if they are behind)                  [H] blk.N.attn_q.weight,
//   .attn_k.weight, .attn_v.weight, or fused attn_qkv.weight         [H, H] each
//   blk.N.attn_output.weight                                        [H, H]
//   blk.N.ffn_up.weight, blk.N.ffn_down.weight                      [F, H], [H, F]
//   blk.N.ffn_gate.weight (if gated), or ffn_up.weight with both    [F, H], [2 F, H]
//   cls.weight, cls.norm, cls.output.weight (of a classifier)       [H, H], [H], [1, H]
//   dense.N.weight, .bias (of EncoderConfig::dense)                 [out, in], [out]
std::vector<ModelTensor> EncoderTensors(const ModelConfig& config);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_FAMILIES_ENCODER_H_
