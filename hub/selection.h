// Which of a repository's files make a model.
#ifndef MILLRACE_HUB_SELECTION_H_
#define MILLRACE_HUB_SELECTION_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "hub/hub.h"

namespace millrace {

inline constexpr char kWeightsIndex[] = "model.safetensors.index.json";

struct Selection {
  std::vector<std::string> files;
  // The one GGUF file that is the whole model.
  std::optional<std::string> gguf;
  // The index is among the files, and names more: Shards.
  bool has_index = false;
};

// `files` are a repository's; `wanted` is a GGUF file's name or tag, or empty. Errors name what
// there is: NOT_FOUND, or INVALID_ARGUMENT where it is not clear which is meant.
absl::StatusOr<Selection> Select(const std::vector<std::string>& files, const std::string& wanted,
                                 HubContent content);

// The files with weights that the text of an index names. FAILED_PRECONDITION for one that lies.
absl::StatusOr<std::vector<std::string>> Shards(std::string_view index);

}  // namespace millrace

#endif  // MILLRACE_HUB_SELECTION_H_
