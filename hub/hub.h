// Models by their names at the Hugging Face hub: from the local cache, or fetched into it.
#ifndef MILLRACE_HUB_HUB_H_
#define MILLRACE_HUB_HUB_H_

#include <atomic>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace millrace {

enum class HubContent {
  kModel,   // config, weights (or a GGUF file), tokenizer
  kConfig,  // the same without weights: for dummy ones
  kText,    // tokenizer and chat template, or a GGUF file
};

struct HubRequest {
  std::string name;  // "org/name", "org/name:FILE.gguf" or "org/name:TAG"
  std::string revision = "main";
  bool offline = false;  // as HF_HUB_OFFLINE has it, too
  HubContent content = HubContent::kModel;
  const std::atomic<bool>* stop = nullptr;  // once true, ends a fetch with Cancelled; may be null
};

// Whether `name` is one of a model at the hub, and not a path.
bool IsHubModel(std::string_view name);

// The folder or the .gguf file in the cache. Unless offline, the hub is asked which commit the
// revision is, and what is missing of it is fetched; where the hub cannot be reached, what the
// cache has goes. HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE mean what they do
// to Hugging Face's own tools.
//
// Errors say what to do about them (hub_api.h, downloader.h).
absl::StatusOr<std::string> FetchHubModel(const HubRequest& request);

}  // namespace millrace

#endif  // MILLRACE_HUB_HUB_H_
