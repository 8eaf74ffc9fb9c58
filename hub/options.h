// Where the hub is, and where its files are kept: as Hugging Face's own tools have it.
#ifndef MILLRACE_HUB_OPTIONS_H_
#define MILLRACE_HUB_OPTIONS_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"

namespace millrace {

struct HubOptions {
  std::string cache;                                // folder; empty where the environment has none
  std::string endpoint = "https://huggingface.co";  // without a slash at its end
  std::string token;                                // empty: none
  bool offline = false;
  const std::atomic<bool>* stop = nullptr;  // once true, ends a fetch with Cancelled

  int connections = 8;
  int64_t part_bytes = 16 << 20;  // that one connection fetches at a time
  int attempts = 5;               // each longer apart, as long as nothing comes
  Duration first_pause = std::chrono::milliseconds(500);
};

// By HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and HOME; HF_ENDPOINT; HF_TOKEN, or the file that
// HF_TOKEN_PATH names or `hf auth login` writes; HF_HUB_OFFLINE. INVALID_ARGUMENT: a token that can
// be none.
absl::StatusOr<HubOptions> HubOptionsOfEnvironment();

}  // namespace millrace

#endif  // MILLRACE_HUB_OPTIONS_H_
