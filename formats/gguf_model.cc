#include "formats/gguf_model.h"

#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "formats/families/families.h"
#include "formats/families/gguf_reader.h"
#include "formats/families/hf_names.h"
#include "formats/families/model_tensors.h"

namespace millrace {

absl::StatusOr<GgufFile> OpenGgufModel(const std::string& path) {
  return GgufFile::Open(path, [](std::string_view architecture, std::string_view name_in_file) {
    return GgufName(name_in_file, FindFamily(architecture));
  });
}

absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file) {
  constexpr char kArchitecture[] = "general.architecture";
  constexpr char kName[] = "general.name";
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view architecture, file.String(kArchitecture));
  const Family* const family = FindFamily(architecture);
  if (family == nullptr) {
    std::vector<std::string_view> supported;
    for (const Family* known : Families()) supported.push_back(known->name);
    return absl::UnimplementedError(
        StrCat(file.base_name(), ": key ", kArchitecture, ": \"", Printable(architecture),
               "\" is not supported (supported: ", JoinList(supported), ")"));
  }
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig config, family->read_gguf(GgufReader(file, *family)));
  config.architecture = family->name;
  if (file.Find(kName) != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(config.name, file.String(kName));
  }
  MILLRACE_RETURN_IF_ERROR(ValidateTensors(config, *family, file));
  return config;
}

}  // namespace millrace
