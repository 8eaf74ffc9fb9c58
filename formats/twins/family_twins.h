// For tests: a small random model of every family of decoders and encoders, as a Hugging Face
// folder and as a GGUF file.
#ifndef MILLRACE_FORMATS_TWINS_FAMILY_TWINS_H_
#define MILLRACE_FORMATS_TWINS_FAMILY_TWINS_H_

#include <string>
#include <string_view>
#include <vector>

#include "formats/json/json.h"

namespace millrace {

struct Family;

// Weights are drawn from a seed, so wide that whatever is computed otherwise shows; layers enough
// that each kind of them comes. tests/reference/family_reference.json has what transformers makes
// of them.
//
// They are read from the families' descriptors (Family::twins), JSON lists of objects with the
// names of these fields, which may be left out. A decoder's has "changes" in place of the config, a
// JSON merge patch to what all decoders' twins have in common, and two mutations of its own
// accord: another base of the rotation, where it has one, and another epsilon.
struct FamilyTwin {
  std::string name;
  const Family* family = nullptr;
  Json config;            // its config.json
  int max_model_len = 0;  // that it is served with; 0: what it was made for
  bool in_gguf = true;    // a GGUF file can say what it is
  std::string gguf_name;  // its architecture in GGUF files; empty: the family's name
  // Fields that llama.cpp's converter writes as they are, with their keys behind the family's name,
  // beside those that it writes of every family.
  Json gguf_keys;
  // Keys of an encoder's GGUF file alone, behind the family's name: texts and whole numbers.
  Json gguf_more;
  // The pooling of embeddings: "mean_tokens", an encoder's "cls_token", a decoder's "lasttoken".
  std::string pooling;
  bool normalize = false;   // of a model of embeddings
  bool bare_names = false;  // a folder's names lack "model."
  std::string classifier;   // of a cross-encoder: the prefix of its tensors in a folder
  double spread = 0.35;  // the weights' half width: somewhat more than an initializer_range of 0.2
                         // gives
  // A GGUF file has q, k, v and the gate of gated delta rules as one tensor, as a folder has them.
  bool fused_in_gguf = false;
  // Of several spellings of a tensor, the folder has the first that contains one of these.
  std::vector<std::string> spelled;

  // Changes to the config that must show: JSON merge patches, none of which changes a tensor's
  // shape.
  std::vector<Json> mutations;
};
std::vector<FamilyTwin> FamilyTwins();  // the decoders' that generate
std::vector<FamilyTwin> PoolerTwins();  // the decoders' that make embeddings
std::vector<FamilyTwin> EncoderTwins();
std::vector<FamilyTwin> ClassifierTwins();  // the cross-encoders'

// Returns the one of FamilyTwins of this name. Ends the test program if there is none.
FamilyTwin FamilyTwinOf(std::string_view name);

// Faults of the weights, made on purpose where no config has the number.
enum class TwinFault {
  kNone,
  kOtherKvHeads,  // neighbours among the heads of keys and values have changed places
  kOtherScale,    // queries, and so all scores, are 1.25 times what they were
};

// Makes the folder, in F32. Ends the test program when that fails.
void WriteTwinFolder(const FamilyTwin& twin, const std::string& folder,
                     TwinFault fault = TwinFault::kNone);

// Writes the same model as a GGUF file, as llama.cpp's converter would: keys, names, the order of
// q's and k's rows, and the 1 of Gemma's norms. Without a tokenizer.
void WriteTwinGguf(const FamilyTwin& twin, const std::string& path,
                   TwinFault fault = TwinFault::kNone);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TWINS_FAMILY_TWINS_H_
