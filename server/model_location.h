// Finds the model to serve, also if the settings name none, and its name.
#ifndef MILLRACE_SERVER_MODEL_LOCATION_H_
#define MILLRACE_SERVER_MODEL_LOCATION_H_

#include <atomic>
#include <string>

#include "absl/status/statusor.h"
#include "base/load_progress.h"
#include "config/settings.h"
#include "engine/request/sampling_defaults.h"
#include "executors/device_spec.h"

namespace millrace {

// Returns the path of settings.model: a path, or the name of a model of the hub, which is
// downloaded if it must be (hub/hub.h). Without one it is the default model in the cache folder:
// $XDG_CACHE_HOME/millrace, or ~/.cache/millrace; NotFound, with the command that fetches it, if it
// is missing. Empty for the fake device, which has no model. Cancelled: `stop` became true
// meanwhile. `progress` is told of a download. InvalidArgument: a revision is given with a path; so
// does TokenizerPath.
absl::StatusOr<std::string> ModelPath(const Settings& settings,
                                      const std::atomic<bool>* stop = nullptr,
                                      LoadProgress* progress = nullptr);

// Returns the path of settings.tokenizer, or `model_path` if it is not set.
absl::StatusOr<std::string> TokenizerPath(const Settings& settings, const std::string& model_path,
                                          const std::atomic<bool>* stop = nullptr,
                                          LoadProgress* progress = nullptr);

// Loads the sampling defaults that settings.generation_config chooses: those of the model's folder,
// of another one, or vLLM's own; values that settings themselves have (--temperature) go first.
absl::StatusOr<SamplingDefaults> LoadSamplingDefaults(const Settings& settings,
                                                      const std::string& model_path);

// Returns the error of a model that could not be opened, as the user can act on it: with the folder
// and not only the file in it, and with what may stand in place of a path that does not exist.
// Errors about settings are left as they are.
absl::Status ExplainModelError(const Settings& settings, const std::string& path,
                               const absl::Status& status);

// Returns the first of settings.served_model_names, or the hub's name of the model, or the file's
// name without ".gguf" or ".pt2"; "fake" where there is no file.
std::string ModelName(const Settings& settings, const std::string& path);

// Returns what the model at `path` is to be loaded for.
ModelSpec MakeModelSpec(const Settings& settings, const std::string& path);

}  // namespace millrace

#endif  // MILLRACE_SERVER_MODEL_LOCATION_H_
