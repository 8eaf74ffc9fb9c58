// The code that Qwen3.5, Qwen3.5-MoE and Qwen3-Next share.
#ifndef MILLRACE_FORMATS_FAMILIES_QWEN35_H_
#define MILLRACE_FORMATS_FAMILIES_QWEN35_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "formats/families/decoder.h"
#include "formats/families/family.h"
#include "formats/families/gguf_reader.h"
#include "formats/families/hf_reader.h"
#include "formats/model/model_config.h"

namespace millrace {

// Reads a model but for its feed-forward networks, where those are mixtures. `defaults` has those
// in which families differ.
absl::StatusOr<ModelConfig> ReadHfQwen35(const HfReader& config, HfDefaults defaults);

// Reads by `read` the language model of a config that has it in text_config. Whether its head is
// the embedding is said beside it, and counts where it is.
absl::StatusOr<ModelConfig> ReadHfNested(
    const HfReader& config, absl::StatusOr<ModelConfig> (*read)(const HfReader& config));

// Reads a GGUF file's model, likewise; and one whose every layer has a mixture and a shared expert.
absl::StatusOr<ModelConfig> ReadGgufQwen35(const GgufReader& file, bool experts);
absl::StatusOr<ModelConfig> ReadGgufQwen35Moe(const GgufReader& file);

// The names of norms in GGUF files.
inline constexpr Spelling kQwen35GgufSpellings[] = {
    {"blk.#.ffn_norm", "blk.#.post_attention_norm"}};

// Prefixes of tensors that predict further tokens, or see images.
inline constexpr std::string_view kQwen35Ignored[] = {"mtp.", "model.visual."};

// Completes a family's own names, readers and twins by what both families have.
constexpr Family Qwen35Family(Family own) {
  own.tensors = DecoderTensors;
  own.shared_spellings = kDecoderSpellings;
  own.gguf_spellings = kQwen35GgufSpellings;
  own.nested_in_folders = true;
  own.ignored = kQwen35Ignored;
  own.ignores_further_layers = true;
  return own;
}

}  // namespace millrace

#endif  // MILLRACE_FORMATS_FAMILIES_QWEN35_H_
