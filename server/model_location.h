// Where the model that is served lies, also when none is named, and what it is called.
#ifndef MILLRACE_SERVER_MODEL_LOCATION_H_
#define MILLRACE_SERVER_MODEL_LOCATION_H_

#include <atomic>
#include <string>

#include "absl/status/statusor.h"
#include "config/settings.h"
#include "engine/sampling_defaults.h"

namespace millrace {

// Where settings.model is: a path, or the name of a model of the hub, which is fetched if it must
// be (hub/hub.h); or the default model in the cache folder: $XDG_CACHE_HOME/millrace, or
// ~/.cache/millrace. NotFound, with the command that fetches it: it is not there. Empty for the
// fake device, which has none. Cancelled: `stop` became true meanwhile. InvalidArgument: a revision
// is given, and what is named is a path; TokenizerPath's, too.
absl::StatusOr<std::string> ModelPath(const Settings& settings,
                                      const std::atomic<bool>* stop = nullptr);

// Where settings.tokenizer is; `model_path` where it is not set.
absl::StatusOr<std::string> TokenizerPath(const Settings& settings, const std::string& model_path,
                                          const std::atomic<bool>* stop = nullptr);

// As settings.generation_config says: of the model's folder, another one, or vLLM's own.
absl::StatusOr<SamplingDefaults> LoadSamplingDefaults(const Settings& settings,
                                                      const std::string& model_path);

// settings.served_model_name, or the hub's name of the model, or the file's name without ".gguf" or
// ".pt2";
// "fake" where there is no file.
std::string ModelName(const Settings& settings, const std::string& path);

}  // namespace millrace

#endif  // MILLRACE_SERVER_MODEL_LOCATION_H_
