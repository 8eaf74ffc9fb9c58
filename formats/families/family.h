// The description of a model family. Each family has a file of this folder, and families.h lists
// them.
#ifndef MILLRACE_FORMATS_FAMILIES_FAMILY_H_
#define MILLRACE_FORMATS_FAMILIES_FAMILY_H_

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "formats/families/gguf_reader.h"
#include "formats/families/hf_reader.h"
#include "formats/families/model_tensors.h"
#include "formats/model/model_config.h"
#include "formats/tensors/tensor_list.h"

namespace millrace {

// An architecture as config.json's `architectures` names it, and the reader of its fields.
// Everything but the layers' types and quantization is read.
struct HfArchitecture {
  std::string_view name;
  absl::StatusOr<ModelConfig> (*read)(const HfReader& config);
};

// How the files of a folder spell a tensor, or a module whose tensors are `<module>.weight` and so
// on. Each # stands for a number, a layer's and then an expert's. A tensor of all experts is
// blk.#.ffn_gate_up_exps.weight and so on (formats/tensors/tensor_list.h).
struct Spelling {
  std::string_view gguf;
  std::string_view hf;
};

struct Family {
  std::string_view name;  // in GGUF files and in ModelConfig::architecture
  absl::Span<const HfArchitecture> hf;
  absl::StatusOr<ModelConfig> (*read_gguf)(const GgufReader& file);
  // In GGUF files the pairs that rotate together are neighbours: llama.cpp's converter reorders the
  // rows of q and k where transformers has them half a head apart.
  bool interleaved_in_gguf = false;

  // Its tensors by GGUF's names, and their spellings in folders: the family's own first, then those
  // that it shares. A name may have several spellings, the usual one first.
  std::vector<ModelTensor> (*tensors)(const ModelConfig& config);
  absl::Span<const Spelling> spellings;
  absl::Span<const Spelling> shared_spellings = {};
  // Spellings of tensors that the family's GGUF files name differently; `hf` is the file's name.
  absl::Span<const Spelling> gguf_spellings = {};
  // The order of gate and up in a tensor of a folder that holds both.
  GateOrder gate_order = GateOrder::kHalves;
  // True if a folder's names may begin with model.language_model. in place of model., as those of
  // models that also see images.
  bool nested_in_folders = false;
  // The prefixes that a folder's names may have; empty: they have none.
  absl::Span<const std::string_view> hf_prefixes = {};
  // Prefixes of tensors that a folder may have and that are not loaded, such as those of heads that
  // we do not use.
  absl::Span<const std::string_view> ignored = {};
  // True if tensors of layers after the last are not loaded either: they predict further tokens
  // (GLM-4.5's MTP).
  bool ignores_further_layers = false;

  // Tiny models for the tests (family_twins.h has the fields), a JSON list.
  std::string_view twins;
};

}  // namespace millrace

#endif  // MILLRACE_FORMATS_FAMILIES_FAMILY_H_
