// Location of the hub and of its cache, configured like Hugging Face's own tools.
#ifndef MILLRACE_HUB_OPTIONS_H_
#define MILLRACE_HUB_OPTIONS_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/load_progress.h"

namespace millrace {

struct HubOptions {
  std::string cache;                                // folder
  std::string endpoint = "https://huggingface.co";  // without a trailing slash
  std::string token;                                // empty: none; HubToken reads it
  bool offline = false;
  const std::atomic<bool>* stop = nullptr;  // once true, ends a fetch with Cancelled

  LoadProgress* progress = nullptr;  // is told of a fetch; may be null
  int connections = 8;
  int64_t part_bytes = 16 << 20;  // fetched by one connection at a time
  int attempts = 5;               // without progress, with growing pauses
  Duration first_pause = std::chrono::milliseconds(500);
};

// Reads HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and HOME; HF_ENDPOINT; HF_HUB_OFFLINE. Returns
// FAILED_PRECONDITION if none of the first four says where the cache is.
absl::StatusOr<HubOptions> HubOptionsOfEnvironment();

// Returns the token of HF_TOKEN, or of the file that HF_TOKEN_PATH names or `hf auth login` writes,
// without the white space around it; empty if there is none. Returns INVALID_ARGUMENT for a
// malformed one.
absl::StatusOr<std::string> HubToken();

}  // namespace millrace

#endif  // MILLRACE_HUB_OPTIONS_H_
