#include "formats/files/folder_file.h"

#include <system_error>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {

bool HasFolderFile(const std::filesystem::path& folder, const std::string& name) {
  std::error_code error;
  return std::filesystem::exists(folder / name, error);
}

absl::StatusOr<MappedFile> OpenFolderFile(const std::filesystem::path& folder,
                                          const std::string& name, size_t most) {
  MILLRACE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(folder / name));
  if (file.bytes().size() > most) {
    return absl::InvalidArgumentError(
        StrCat(name, ": ", file.bytes().size(), " bytes, must be at most ", most));
  }
  return file;
}

absl::StatusOr<Json> ReadFolderJson(const std::filesystem::path& folder, const std::string& name,
                                    size_t most) {
  MILLRACE_ASSIGN_OR_RETURN(const MappedFile file, OpenFolderFile(folder, name, most));
  absl::StatusOr<Json> json = ParseJson(file.text(), JsonLimits{});
  if (!json.ok()) return Annotate(json.status(), name);
  if (!json->is_object()) {
    return absl::InvalidArgumentError(
        StrCat(name, ": is ", Describe(*json), ", must be an object"));
  }
  return json;
}

}  // namespace millrace
