// Resolves models by their names at the Hugging Face hub, from the local cache or by download.
#ifndef MILLRACE_HUB_HUB_H_
#define MILLRACE_HUB_HUB_H_

#include <atomic>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/load_progress.h"

namespace millrace {

enum class HubContent {
  kModel,   // config, weights (or a GGUF file), tokenizer
  kConfig,  // the same without weights, for dummy weights
  kText,    // tokenizer and chat template, or a GGUF file
};

struct HubRequest {
  std::string name;  // "org/name", "org/name:FILE.gguf" or "org/name:TAG"
  std::string revision = "main";
  bool offline = false;  // also set by HF_HUB_OFFLINE
  HubContent content = HubContent::kModel;
  const std::atomic<bool>* stop = nullptr;  // once true, ends a fetch with Cancelled; may be null
  LoadProgress* progress = nullptr;         // is told of a fetch; may be null
};

// Returns whether `name` names a model at the hub and not a path.
bool IsHubModel(std::string_view name);

// Returns the model's folder or .gguf file, of several the first, in the cache. Unless offline, it
// queries the hub for the revision's commit and downloads missing files; if the hub cannot be
// reached, the cached version is used. HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN and
// HF_HUB_OFFLINE have the same meaning as for Hugging Face's own tools.
//
// Error messages say what to do about them (hub_api.h, downloader.h).
absl::StatusOr<std::string> FetchHubModel(const HubRequest& request);

}  // namespace millrace

#endif  // MILLRACE_HUB_HUB_H_
