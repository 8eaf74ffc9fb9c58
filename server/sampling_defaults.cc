#include "server/sampling_defaults.h"

#include "base/strings.h"

namespace millrace {

SamplingDefaults MakeSamplingDefaults(const GenerationConfig& config) {
  const SamplingDefaults own;
  return {.temperature = config.temperature.value_or(own.temperature),
          .top_k = config.top_k.value_or(own.top_k),
          .top_p = config.top_p.value_or(own.top_p),
          .min_p = config.min_p.value_or(own.min_p),
          .typical_p = config.typical_p.value_or(own.typical_p),
          .repetition_penalty = config.repetition_penalty.value_or(own.repetition_penalty),
          .max_tokens = config.max_new_tokens};
}

void Apply(const SamplingDefaults& defaults, GenerateRequest* request) {
  request->temperature = defaults.temperature;
  request->top_k = defaults.top_k;
  request->top_p = defaults.top_p;
  request->min_p = defaults.min_p;
  request->typical_p = defaults.typical_p;
  request->repetition_penalty = defaults.repetition_penalty;
  request->default_max_tokens = defaults.max_tokens;
}

std::vector<std::pair<std::string_view, std::string>> NamedDefaults(
    const SamplingDefaults& defaults) {
  const SamplingDefaults own;
  std::vector<std::pair<std::string_view, std::string>> named;
  const auto add = [&](std::string_view name, auto SamplingDefaults::*member) {
    if (defaults.*member != own.*member) named.emplace_back(name, StrCat(defaults.*member));
  };
  add("temperature", &SamplingDefaults::temperature);
  add("top_k", &SamplingDefaults::top_k);
  add("top_p", &SamplingDefaults::top_p);
  add("min_p", &SamplingDefaults::min_p);
  add("typical_p", &SamplingDefaults::typical_p);
  add("repetition_penalty", &SamplingDefaults::repetition_penalty);
  if (defaults.max_tokens.has_value())
    named.emplace_back("max_tokens", StrCat(*defaults.max_tokens));
  return named;
}

}  // namespace millrace
