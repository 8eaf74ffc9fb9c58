// The parts that families of decoders share: their tensors, and most of transformers' spellings.
#ifndef MILLRACE_FORMATS_FAMILIES_DECODER_H_
#define MILLRACE_FORMATS_FAMILIES_DECODER_H_

#include <array>
#include <cstddef>
#include <vector>

#include "formats/families/family.h"

namespace millrace {

// Returns the tensors that the layers of `config` call for. Shapes, outermost first, with H =
// hidden_size, D = head_size, F = the feed-forward network's size:
//   token_embd.weight, output.weight (unless tied)   [vocab_size, H]
//   output_norm.weight                               [H]
//   blk.N.attn_norm.weight, blk.N.ffn_norm.weight (if NormsInput)                     [H]
//     of the layer's first part, and of its second, if it has one
//   blk.N.post_attention_norm.weight, blk.N.post_ffw_norm.weight (if NormsOutput)     [H]
//   blk.N.attn_q.weight                [heads * D, H], or [heads * 2 D, H] if output_gate
//   blk.N.attn_k.weight, blk.N.attn_v.weight         [kv_heads * D, H]
//   blk.N.attn_q.bias, .attn_k.bias, .attn_v.bias (if qkv_bias)      a number for each row
//   blk.N.attn_qkv.weight (if fused_qkv, in place of the three)      their rows together
//   blk.N.attn_q_norm.weight, blk.N.attn_k_norm.weight (if qk_norm)  [D], or a number for each row
//   blk.N.attn_output.weight                         [H, heads * D]
//   blk.N.ffn_gate.weight, blk.N.ffn_up.weight       [F, H]
//   blk.N.ffn_up.weight (if fused_gate_up, in place of the two)      [2 * F, H]
//   blk.N.ffn_down.weight                            [H, F]
//   no blk.N.ffn_gate and the like where the function has no gate (HasGate)
//   blk.N.attn_output.bias (if output_bias)          [H]
//   blk.N.attn_sinks.weight (if sinks)               [heads]
// in the place of attention's, of a gated delta rule with C channels, V value heads of S elements:
//   blk.N.attn_qkv.weight                            [C, H]: q's rows, k's and then v's
//   blk.N.attn_gate.weight                           [V * S, H]
//   blk.N.ssm_beta.weight, blk.N.ssm_alpha.weight    [V, H]
//   blk.N.ssm_in.weight (if fused_qkvz, in place of the first two)    [C + V * S, H]: of each key
//     head q's rows, k's, v's and then the gate's
//   blk.N.ssm_ba.weight (if fused_beta_alpha, in place of those two)  [2 * V, H]: of each key head
//     beta's rows and then alpha's
//   blk.N.ssm_conv1d.weight            [C, 1, kConvolutionWidth]; in GGUF [C, kConvolutionWidth]
//   blk.N.ssm_a, blk.N.ssm_dt.bias                   [V]
//   blk.N.ssm_norm.weight                            [S]
//   blk.N.ssm_out.weight                             [H, V * S]
// in the place of attention's, of a short convolution of C channels and a width of L:
//   blk.N.shortconv.in_proj.weight                   [3 * C, H]: b's rows, c's and then x's
//   blk.N.shortconv.conv.weight                      [C, 1, L]; in GGUF [C, L]
//   blk.N.shortconv.out_proj.weight                  [H, C]
//   the .bias of each (if bias)                      a number for each row, or channel
// in the place of attention's, of a Mamba-2 mixer with V heads of S elements, C channels of the
// convolution and a width of L:
//   blk.N.ssm_in.weight                [V * S + C + V, H]: z's rows, x's, b's, c's and then dt's
//   blk.N.ssm_conv1d.weight            [C, 1, L]; in GGUF [C, L]
//   blk.N.ssm_a, blk.N.ssm_d, blk.N.ssm_dt.bias      [V]
//   blk.N.ssm_norm.weight                            [V * S]
//   blk.N.ssm_out.weight                             [H, V * S]
//   .bias of ssm_conv1d (if convolution_bias), of ssm_in and ssm_out (if projection_bias)
// and of a mixture of E experts, each of size F, in the place of those with ffn_:
//   blk.N.ffn_gate_inp.weight, and .bias (if the router has it)      [E, H], [E]
//   blk.N.exp_probs_b.bias (if it has a correction)                  [E]
//   blk.N.ffn_gate.I.weight, blk.N.ffn_up.I.weight of expert I       [F, H]
//   blk.N.ffn_down.I.weight                                          [H, F]
//   the .bias of each (if biases)                                    a number for each row
//   blk.N.ffn_gate_shexp.weight, blk.N.ffn_up_shexp.weight (if shared_size S)      [S, H]
//   blk.N.ffn_down_shexp.weight                                                    [H, S]
//   blk.N.ffn_gate_inp_shexp.weight (if shared_gate)                               [1, H]
std::vector<ModelTensor> DecoderTensors(const ModelConfig& config);

// The names of the tensors of gated delta rules.
inline constexpr Spelling kDeltaSpellings[] = {
    {"blk.#.attn_qkv", "model.layers.#.linear_attn.in_proj_qkv"},
    {"blk.#.attn_gate", "model.layers.#.linear_attn.in_proj_z"},
    {"blk.#.ssm_beta", "model.layers.#.linear_attn.in_proj_b"},
    {"blk.#.ssm_alpha", "model.layers.#.linear_attn.in_proj_a"},
    {"blk.#.ssm_in", "model.layers.#.linear_attn.in_proj_qkvz"},
    {"blk.#.ssm_ba", "model.layers.#.linear_attn.in_proj_ba"},
    {"blk.#.ssm_conv1d", "model.layers.#.linear_attn.conv1d"},
    {"blk.#.ssm_a", "model.layers.#.linear_attn.A_log"},
    {"blk.#.ssm_dt.bias", "model.layers.#.linear_attn.dt_bias"},
    {"blk.#.ssm_norm", "model.layers.#.linear_attn.norm"},
    {"blk.#.ssm_out", "model.layers.#.linear_attn.out_proj"},
};

// All but the norms of the feed-forward network and of what blocks add, whose names differ.
inline constexpr Spelling kDecoderSpellings[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
    {"blk.#.attn_norm", "model.layers.#.input_layernorm"},
    {"blk.#.attn_q", "model.layers.#.self_attn.q_proj"},
    {"blk.#.attn_k", "model.layers.#.self_attn.k_proj"},
    {"blk.#.attn_v", "model.layers.#.self_attn.v_proj"},
    {"blk.#.attn_q_norm", "model.layers.#.self_attn.q_norm"},
    {"blk.#.attn_k_norm", "model.layers.#.self_attn.k_norm"},
    {"blk.#.attn_qkv", "model.layers.#.self_attn.qkv_proj"},
    {"blk.#.attn_output", "model.layers.#.self_attn.o_proj"},
    {"blk.#.ffn_gate", "model.layers.#.mlp.gate_proj"},
    {"blk.#.ffn_up", "model.layers.#.mlp.up_proj"},
    {"blk.#.ffn_down", "model.layers.#.mlp.down_proj"},
    // Scales of FP8 keys and values.
    {"blk.#.attn.k_scale", "model.layers.#.self_attn.k_scale"},
    {"blk.#.attn.k_scale", "model.layers.#.self_attn.attn.k_scale"},
    {"blk.#.attn.k_scale", "model.layers.#.self_attn.k_proj.k_scale"},
    {"blk.#.attn.k_scale", "model.layers.#.self_attn.k_proj.output_scale"},
    {"blk.#.attn.v_scale", "model.layers.#.self_attn.v_scale"},
    {"blk.#.attn.v_scale", "model.layers.#.self_attn.attn.v_scale"},
    {"blk.#.attn.v_scale", "model.layers.#.self_attn.v_proj.v_scale"},
    {"blk.#.attn.v_scale", "model.layers.#.self_attn.v_proj.output_scale"},
};

// For layers that norm what their blocks read, and no more.
inline constexpr Spelling kPreNormSpellings[] = {
    {"blk.#.ffn_norm", "model.layers.#.post_attention_layernorm"}};

// Returns both lists, of which a family has but one of its own.
template <size_t kFirst, size_t kSecond>
constexpr std::array<Spelling, kFirst + kSecond> Joined(const Spelling (&first)[kFirst],
                                                        const Spelling (&second)[kSecond]) {
  std::array<Spelling, kFirst + kSecond> all{};
  for (size_t i = 0; i < kFirst; ++i) all[i] = first[i];
  for (size_t i = 0; i < kSecond; ++i) all[kFirst + i] = second[i];
  return all;
}

// For layers that norm what their blocks add, and perhaps what they read.
inline constexpr Spelling kOutputNormSpellings[] = {
    {"blk.#.post_attention_norm", "model.layers.#.post_attention_layernorm"},
    {"blk.#.ffn_norm", "model.layers.#.pre_feedforward_layernorm"},
    {"blk.#.post_ffw_norm", "model.layers.#.post_feedforward_layernorm"}};

}  // namespace millrace

#endif  // MILLRACE_FORMATS_FAMILIES_DECODER_H_
