// Which model is served when none is named, and what a served model is called.
#ifndef MILLRACE_SERVER_DEFAULT_MODEL_H_
#define MILLRACE_SERVER_DEFAULT_MODEL_H_

#include <string>

#include "absl/status/statusor.h"
#include "config/settings.h"

namespace millrace {

// settings.model, or the default model in the cache folder: $XDG_CACHE_HOME/millrace, or
// ~/.cache/millrace. NotFound, with the command that fetches it: it is not there. Empty for the
// fake device, which has none.
absl::StatusOr<std::string> ModelPath(const Settings& settings);

// settings.served_model_name, or the file's name without ".gguf"; "fake" where there is no file.
std::string ModelName(const Settings& settings, const std::string& path);

}  // namespace millrace

#endif  // MILLRACE_SERVER_DEFAULT_MODEL_H_
