// What a model file says about the shape and the numbers of a Llama-family model.
#ifndef MILLRACE_FORMATS_MODEL_CONFIG_H_
#define MILLRACE_FORMATS_MODEL_CONFIG_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "formats/gguf.h"

namespace millrace {

// Every count is at least 1 and small enough that a product of any three fits an int64_t.
struct ModelConfig {
  std::string architecture;  // "llama"
  std::string name;          // general.name, may be empty
  int layers = 0;
  int hidden_size = 0;
  int ffn_size = 0;
  int heads = 0;
  int kv_heads = 0;         // divides heads
  int head_size = 0;        // even; heads * head_size need not be hidden_size
  int rope_dimensions = 0;  // even, <= head_size: how many of a head's first elements are rotated
  // Position p rotates the pair (2i, 2i+1) of a head (GGUF stores q and k so that pairs are
  // neighbours) by p * rope_theta^(-2i/rope_dimensions) / rope_freqs.weight[i], the latter taken as
  // 1 where the file has no such tensor.
  double rope_theta = 0;
  bool rope_factors = false;  // the file has rope_freqs.weight, F32 [rope_dimensions / 2]
  double rms_epsilon = 0;
  int vocab_size = 0;
  int context_length = 0;        // positions that the model was trained for
  bool tied_embeddings = false;  // token_embd.weight is the head as well; else output.weight is
};

// Reads and checks the metadata, then every tensor against it (ValidateTensors): after OK, a family
// can look its tensors up by name without another check. What changes the maths and is not built
// (another architecture, experts, sliding windows, scaled rope, biases …) is refused by name with
// UNIMPLEMENTED.
absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file);

// Checks that the file has exactly the tensors that `config` asks for, of the right shapes, norms
// and rope_freqs in F32. Shapes, outermost first, with H = hidden_size, D = head_size:
//   token_embd.weight, output.weight (unless tied)   [vocab_size, H]
//   output_norm.weight                               [H]
//   rope_freqs.weight (if rope_factors)              [rope_dimensions / 2]
//   blk.N.attn_norm.weight, blk.N.ffn_norm.weight    [H]
//   blk.N.attn_q.weight                              [heads * D, H]
//   blk.N.attn_k.weight, blk.N.attn_v.weight         [kv_heads * D, H]
//   blk.N.attn_output.weight                         [H, heads * D]
//   blk.N.ffn_gate.weight, blk.N.ffn_up.weight       [ffn_size, H]
//   blk.N.ffn_down.weight                            [H, ffn_size]
absl::Status ValidateTensors(const ModelConfig& config, const GgufFile& file);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_MODEL_CONFIG_H_
