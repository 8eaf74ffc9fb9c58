// Selects the files of a repository that make up a model.
#ifndef MILLRACE_HUB_SELECTION_H_
#define MILLRACE_HUB_SELECTION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "hub/hub.h"

namespace millrace {

inline constexpr char kWeightsIndex[] = "model.safetensors.index.json";
inline constexpr int64_t kMaxIndexBytes = 64 << 20;

struct Selection {
  std::vector<std::string> files;
  // Those that would have been selected as well, had the repository had them.
  std::vector<std::string> absent;
  // The GGUF file, if it is the whole model; of several that it is split into, the first.
  std::optional<std::string> gguf;
  // True if `files` contains the index, whose Shards are needed too.
  bool has_index = false;
};

// Selects from `files`, a repository's files. `wanted` is a GGUF file's name or tag, or empty; the
// name of one of several that a model is split into stands for all.
// Errors name the candidates: NOT_FOUND, or INVALID_ARGUMENT if the choice is ambiguous.
absl::StatusOr<Selection> Select(const std::vector<std::string>& files, const std::string& wanted,
                                 HubContent content);

// Returns the weight files that an index names. Returns FAILED_PRECONDITION if the index is
// malformed.
absl::StatusOr<std::vector<std::string>> Shards(std::string_view index);

}  // namespace millrace

#endif  // MILLRACE_HUB_SELECTION_H_
