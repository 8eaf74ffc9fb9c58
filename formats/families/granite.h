// The code that Granite's families share.
#ifndef MILLRACE_FORMATS_FAMILIES_GRANITE_H_
#define MILLRACE_FORMATS_FAMILIES_GRANITE_H_

#include "formats/families/family.h"
#include "formats/families/gguf_reader.h"
#include "formats/families/hf_reader.h"

namespace millrace {

// Read Llama's layers and Granite's factors. `experts`: the family reads its mixtures itself;
// `kv_heads`: GgufReads has it.
absl::StatusOr<ModelConfig> ReadHfGranite(const HfReader& config);
absl::StatusOr<ModelConfig> ReadGgufGranite(const GgufReader& file, bool experts, int kv_heads = 0);

// The scores of Granite's experts: a softmax over the logits of the chosen ones.
inline constexpr RouterConfig kGraniteRouter = {.renormalize = true};

// The names of Granite's mixtures in folders.
inline constexpr Spelling kGraniteMoeSpellings[] = {
    {"blk.#.ffn_norm", "model.layers.#.post_attention_layernorm"},
    {"blk.#.ffn_gate_inp", "model.layers.#.block_sparse_moe.router.layer"},
    {"blk.#.ffn_gate_inp", "model.layers.#.block_sparse_moe.router"},
    {"blk.#.ffn_gate_up_exps.weight", "model.layers.#.block_sparse_moe.input_linear.weight"},
    {"blk.#.ffn_down_exps.weight", "model.layers.#.block_sparse_moe.output_linear.weight"},
    {"blk.#.ffn_gate_up_exps.weight", "model.layers.#.block_sparse_moe.experts.gate_up_proj"},
    {"blk.#.ffn_down_exps.weight", "model.layers.#.block_sparse_moe.experts.down_proj"},
    {"blk.#.ffn_gate_up_shexp", "model.layers.#.shared_mlp.input_linear"},
    {"blk.#.ffn_down_shexp", "model.layers.#.shared_mlp.output_linear"},
};

}  // namespace millrace

#endif  // MILLRACE_FORMATS_FAMILIES_GRANITE_H_
