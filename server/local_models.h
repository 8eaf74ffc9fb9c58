// `millraced get`, `list` and `rm`: the models of the local cache.
#ifndef MILLRACE_SERVER_LOCAL_MODELS_H_
#define MILLRACE_SERVER_LOCAL_MODELS_H_

#include <atomic>

#include "absl/status/status.h"
#include "config/settings.h"

namespace millrace {

// Fetches settings.model and prints its path to stdout. `stop`, once true, ends it with Cancelled.
absl::Status GetModel(const Settings& settings, const std::atomic<bool>& stop);

// Prints a table of the cache's models to stdout.
absl::Status ListModels();

// Removes settings.model from the cache, and prints what that freed to stdout.
absl::Status RemoveModel(const Settings& settings);

}  // namespace millrace

#endif  // MILLRACE_SERVER_LOCAL_MODELS_H_
