// Which tensors a Hugging Face folder has that is made of a checkpoint.
#ifndef MILLRACE_FORMATS_DISTRIBUTED_FOLDER_TENSORS_H_
#define MILLRACE_FORMATS_DISTRIBUTED_FOLDER_TENSORS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "formats/distributed/checkpoint_metadata.h"
#include "formats/distributed/name_rules.h"

namespace millrace {

// What naming must know of the folder's config.json.
struct FolderFacts {
  std::string model_type;
  int64_t heads = 0;     // of queries; 0: the config does not say
  int64_t kv_heads = 0;  // of keys
  bool tied = false;     // head and embedding
};

// Reads them. Errors name the file and the field.
absl::StatusOr<FolderFacts> ReadFolderFacts(const std::string& folder);

// A tensor of the folder, of a part of a checkpoint's tensor.
struct FolderTensor {
  std::string name;
  size_t source = 0;  // of CheckpointMetadata::tensors
  std::vector<int64_t> shape;
  int64_t rotary_heads = 0;  // > 0: of so many heads the rows are put from pairs into halves
};

struct FolderTensors {
  // Those of the same source follow each other, and are together all of it.
  std::vector<FolderTensor> tensors;
  int64_t left_out = 0;  // tensors of the model that rules leave out
};

// Names the tensors by a table of rules, or, if `rules` is null, by what their names look like:
// torchtitan's, by the model's type, or Hugging Face's own. For those the names lose what wrappers
// put in ("_orig_mod.") and the nests that all are in ("model.", "app.model.", "module.").
// INVALID_ARGUMENT, naming the tensor, for one that no rule names, or of a shape that its rule
// cannot be used for; UNIMPLEMENTED for names that are not known.
absl::StatusOr<FolderTensors> NameTensors(const CheckpointMetadata& checkpoint,
                                          const FolderFacts& facts,
                                          const std::vector<NameRule>* rules);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_DISTRIBUTED_FOLDER_TENSORS_H_
