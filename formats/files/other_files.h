// Says what files are that are no models we read: people name them, and errors about a field deep
// inside do not tell them what to do.
#ifndef MILLRACE_FORMATS_FILES_OTHER_FILES_H_
#define MILLRACE_FORMATS_FILES_OTHER_FILES_H_

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace millrace {

// Returns what a file is by its first bytes, with what to do instead: "a safetensors file: name the
// folder that it is in". Empty if it is none of the kinds that are known.
std::string DescribeOtherFile(absl::Span<const uint8_t> bytes);

// Returns an error, without the file's name, if a file is git-LFS's pointer to it.
absl::Status CheckNotPointer(absl::Span<const uint8_t> bytes);

// Returns an error if a GGUF file with these values of general.architecture and general.type, each
// of which may be empty, is part of a model only: a projector, an adapter, a control vector.
absl::Status CheckGgufIsModel(std::string_view architecture, std::string_view type);

// Returns an error, by the file's name, if a folder has an adapter, which would not be applied, or
// no config.json.
absl::Status CheckFolderIsModel(const std::filesystem::path& folder);

// Returns an error if a folder without safetensors has weights in another form.
absl::Status CheckNoOtherWeights(const std::filesystem::path& folder);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_FILES_OTHER_FILES_H_
