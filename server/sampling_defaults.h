// How requests are sampled that do not say it: the model's own way, or else vLLM's.
#ifndef MILLRACE_SERVER_SAMPLING_DEFAULTS_H_
#define MILLRACE_SERVER_SAMPLING_DEFAULTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/generation_config.h"
#include "server/request.h"

namespace millrace {

struct SamplingDefaults {
  float temperature = 1.0f;
  int32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float typical_p = 1.0f;
  float repetition_penalty = 1.0f;
  std::optional<int32_t> max_tokens;  // unset: as many as fit
};

// What the model's authors want, and else what stands above.
SamplingDefaults MakeSamplingDefaults(const GenerationConfig& config);

// A request begins so, and then says what it does.
void Apply(const SamplingDefaults& defaults, GenerateRequest* request);

// Those that are not as above, by the names of a request's fields; numbers as JSON writes them.
std::vector<std::pair<std::string_view, std::string>> NamedDefaults(
    const SamplingDefaults& defaults);

}  // namespace millrace

#endif  // MILLRACE_SERVER_SAMPLING_DEFAULTS_H_
