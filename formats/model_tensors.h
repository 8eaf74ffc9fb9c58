// Which tensors a model has, by its config.
#ifndef MILLRACE_FORMATS_MODEL_TENSORS_H_
#define MILLRACE_FORMATS_MODEL_TENSORS_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "formats/model_config.h"
#include "formats/tensor_source.h"

namespace millrace {

// In GGUF files: ModelConfig::rope's factors, no tensors that a placer places.
inline constexpr char kRopeFactors[] = "rope_freqs.weight";
inline constexpr char kShortRopeFactors[] = "rope_factors_short.weight";
inline constexpr char kLongRopeFactors[] = "rope_factors_long.weight";

// Checks that `tensors` are exactly what `config` asks for, of the right shapes and types: after
// OK, a family and a placer can look them up by name without another check. Shapes, outermost
// first, with H = hidden_size, D = head_size:
//   token_embd.weight, output.weight (unless tied)   [vocab_size, H]
//   output_norm.weight                               [H]
//   blk.N.attn_norm.weight, blk.N.ffn_norm.weight (if pre_norms)     [H]
//   blk.N.post_attention_norm.weight, blk.N.post_ffw_norm.weight (if post_norms)  [H]
//   blk.N.attn_q.weight                              [heads * D, H]
//   blk.N.attn_k.weight, blk.N.attn_v.weight         [kv_heads * D, H]
//   blk.N.attn_q.bias, .attn_k.bias, .attn_v.bias (if qkv_bias)      a number for each row
//   blk.N.attn_qkv.weight (if fused_qkv, in place of the three)      their rows together
//   blk.N.attn_q_norm.weight, blk.N.attn_k_norm.weight (if qk_norm)  [D], or a number for each row
//   blk.N.attn_output.weight                         [H, heads * D]
//   blk.N.ffn_gate.weight, blk.N.ffn_up.weight       [ffn_size, H]
//   blk.N.ffn_up.weight (if fused_gate_up, in place of the two)      [2 * ffn_size, H]
//   blk.N.ffn_down.weight                            [H, ffn_size]
// Of an encoder, each linear and norm with a .bias beside its .weight, [out] or [H]:
//   token_embd.weight [vocab_size, H], position_embd.weight [positions, H],
//   token_types.weight [token_types, H], token_embd_norm
//   blk.N.attn_q, .attn_k, .attn_v, .attn_output      [H, H]
//   blk.N.ffn_up [ffn_size, H], blk.N.ffn_down [H, ffn_size]
//   blk.N.attn_output_norm, blk.N.layer_output_norm   [H]
// What a pre-training head or BERT's own pooler may have beside is left alone.
// Norms and biases are F32, F16 or BF16. Where config.fp8 is set, a layer's linear may be of type
// F8_E4M3 (one that is not was left as it is by whoever quantized the model), and has beside it
//   <name>.weight_scale  [1], [out] (or [out, 1]) or [ceil(out / 128), ceil(in / 128)], and
//   <name>.input_scale   [1], where activations are static;
// and a layer may have blk.N.attn.k_scale and blk.N.attn.v_scale, [1], for FP8 keys and values.
// Scales are F32, F16 or BF16; a single number may have no dimension.
absl::Status ValidateTensors(const ModelConfig& config, const TensorSource& tensors);

// The same tensors without data, for dummy weights: linears in F8_E4M3 with their scales in F32
// where config.fp8 is set, else in `type` as the embedding, the head and the norms.
std::unique_ptr<const TensorSource> MakeTensorShapes(const ModelConfig& config, TensorType type,
                                                     std::string base_name);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_MODEL_TENSORS_H_
