// What a model file says about the shape and the numbers of a model of the Llama family.
#ifndef MILLRACE_FORMATS_MODEL_CONFIG_H_
#define MILLRACE_FORMATS_MODEL_CONFIG_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "formats/gguf.h"

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

// Every count is at least 1.
struct ModelConfig {
  std::string architecture;  // the family: "llama" or "qwen3"
  std::string name;          // may be empty
  int layers = 0;
  int hidden_size = 0;
  int ffn_size = 0;
  int heads = 0;
  int kv_heads = 0;         // divides heads
  int head_size = 0;        // even; heads * head_size need not be hidden_size
  int rope_dimensions = 0;  // even, <= head_size: how many of a head's first elements are rotated
  // Position p rotates pair i of a head by p * rope_theta^(-2i/rope_dimensions) / rope_factors[i].
  // The pair is (2i, 2i + 1) where interleaved (GGUF stores Llama's q and k so), else
  // (i, i + rope_dimensions / 2).
  double rope_theta = 0;
  bool rope_interleaved = true;
  std::vector<float> rope_factors;  // [rope_dimensions / 2], or empty for all ones
  bool qk_norm = false;             // q and k of each head are normed before the rotation (Qwen3)
  double rms_epsilon = 0;
  int vocab_size = 0;
  int context_length = 0;           // positions that the model was trained for
  bool tied_embeddings = false;     // token_embd.weight is the head as well; else output.weight is
  std::vector<int32_t> end_tokens;  // that end an answer, as a folder says; a GGUF file's tokenizer
                                    // has its own
  std::optional<Fp8Scheme> fp8;     // nothing: linears are of the types that their tensors say
};

// Of a GGUF file: reads and checks the metadata, then every tensor against it (ValidateTensors):
// after OK, a family can look its tensors up by name without another check. What changes the maths
// and is not built (another architecture, experts, sliding windows, scaled rope, biases …) is
// refused by name with UNIMPLEMENTED.
absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_MODEL_CONFIG_H_
