// The sampling of requests that do not say it: the model's own, or else vLLM's.
#ifndef MILLRACE_ENGINE_REQUEST_SAMPLING_DEFAULTS_H_
#define MILLRACE_ENGINE_REQUEST_SAMPLING_DEFAULTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/request/request.h"
#include "formats/generation_config.h"

namespace millrace {

struct SamplingDefaults {
  SamplingParams params;              // of these, those of ForEachSamplingField
  std::optional<int32_t> max_tokens;  // unset: as many as fit
};

// Takes the values that the model's authors give, and for the others the declared defaults.
// InvalidArgument names a value that a request may not have either, and where it stands: `source`.
absl::StatusOr<SamplingDefaults> MakeSamplingDefaults(
    const GenerationConfig& config, std::string_view source = "generation_config.json");

// Sets the request's fields, before those that its client gives are read.
void Apply(const SamplingDefaults& defaults, GenerateRequest* request);

// Returns those that differ from the declared defaults, by the names of a request's fields; numbers
// as JSON writes them.
std::vector<std::pair<std::string_view, std::string>> NamedDefaults(
    const SamplingDefaults& defaults);

}  // namespace millrace

#endif  // MILLRACE_ENGINE_REQUEST_SAMPLING_DEFAULTS_H_
