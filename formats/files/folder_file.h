// One file of a Hugging Face folder: bounded, and named without its folder in messages.
#ifndef MILLRACE_FORMATS_FILES_FOLDER_FILE_H_
#define MILLRACE_FORMATS_FILES_FOLDER_FILE_H_

#include <filesystem>
#include <string>

#include "absl/status/statusor.h"
#include "formats/files/mapped_file.h"
#include "formats/json/json.h"

namespace millrace {

bool HasFolderFile(const std::filesystem::path& folder, const std::string& name);

// Opens a folder's file. NOT_FOUND if it is missing, INVALID_ARGUMENT if it has more than `most`
// bytes.
absl::StatusOr<MappedFile> OpenFolderFile(const std::filesystem::path& folder,
                                          const std::string& name, size_t most);

// Returns the JSON object that it holds.
absl::StatusOr<Json> ReadFolderJson(const std::filesystem::path& folder, const std::string& name,
                                    size_t most);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_FILES_FOLDER_FILE_H_
