// The code that LFM2 and LFM2-MoE share.
#ifndef MILLRACE_FORMATS_FAMILIES_LFM2_H_
#define MILLRACE_FORMATS_FAMILIES_LFM2_H_

#include "absl/status/statusor.h"
#include "formats/families/family.h"
#include "formats/families/gguf_reader.h"
#include "formats/families/hf_reader.h"
#include "formats/model/model_config.h"

namespace millrace {

// Reads a model whose feed-forward networks all have the size of intermediate_size, or, with
// `adjusts_size`, what the fields that adjust it make of that.
absl::StatusOr<ModelConfig> ReadHfLfm2(const HfReader& config, bool adjusts_size);

// Reads a GGUF file's model but for its mixtures, where `experts` says that there are some.
absl::StatusOr<ModelConfig> ReadGgufLfm2(const GgufReader& file, bool experts);

// The names of tensors outside mixtures.
inline constexpr Spelling kLfm2Spellings[] = {
    {"output_norm", "model.embedding_norm"},
    {"blk.#.attn_norm", "model.layers.#.operator_norm"},
    {"blk.#.ffn_norm", "model.layers.#.ffn_norm"},
    {"blk.#.attn_q_norm", "model.layers.#.self_attn.q_layernorm"},
    {"blk.#.attn_k_norm", "model.layers.#.self_attn.k_layernorm"},
    {"blk.#.attn_output", "model.layers.#.self_attn.out_proj"},
    {"blk.#.ffn_gate", "model.layers.#.feed_forward.w1"},
    {"blk.#.ffn_up", "model.layers.#.feed_forward.w3"},
    {"blk.#.ffn_down", "model.layers.#.feed_forward.w2"},
    {"blk.#.shortconv.in_proj", "model.layers.#.conv.in_proj"},
    {"blk.#.shortconv.conv", "model.layers.#.conv.conv"},
    {"blk.#.shortconv.out_proj", "model.layers.#.conv.out_proj"},
};

// The name of the last norm in GGUF files.
inline constexpr Spelling kLfm2GgufSpellings[] = {{"output_norm", "token_embd_norm"}};

}  // namespace millrace

#endif  // MILLRACE_FORMATS_FAMILIES_LFM2_H_
