// The families that the GPU does not run.
#ifndef MILLRACE_EXECUTORS_CUDA_FAMILY_REFUSALS_TEST_UTIL_H_
#define MILLRACE_EXECUTORS_CUDA_FAMILY_REFUSALS_TEST_UTIL_H_

#include <algorithm>
#include <map>
#include <optional>
#include <string>

namespace millrace::cuda {

// Returns a part of the message that refuses the twin, or nothing for a twin that runs.
inline std::optional<std::string> RefusalOf(const std::string& twin) {
  const std::map<std::string, std::string> refusals = {
      {"gemma2", "attention soft cap is 3"},
      {"gemma3", "gate function is GELU"},
      {"qwen3_next", "has its rows in"},
      {"granitehybrid_biased", "mamba_d_conv is 3"},
      {"nemotron_h", "feed-forward network is squared ReLU without a gate"}};
  const auto refusal = std::find_if(refusals.begin(), refusals.end(), [&](const auto& entry) {
    return twin.starts_with(entry.first);
  });
  if (refusal == refusals.end()) return std::nullopt;
  return refusal->second;
}

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_FAMILY_REFUSALS_TEST_UTIL_H_
