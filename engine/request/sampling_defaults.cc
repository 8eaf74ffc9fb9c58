#include "engine/request/sampling_defaults.h"

#include "base/strings.h"
#include "engine/request/request_fields.h"

namespace millrace {

absl::StatusOr<SamplingDefaults> MakeSamplingDefaults(const GenerationConfig& config,
                                                      std::string_view source) {
  SamplingDefaults defaults{.max_tokens = config.max_new_tokens};
  absl::Status status;
  ForEachSamplingField([&](const auto& field) {
    if (field.config == nullptr) return;
    const auto value = (config.*field.config).value_or(RequestFields().*field.member);
    defaults.params.*field.params = value;
    if (!field.Allows(value)) {
      status.Update(absl::InvalidArgumentError(
          StrCat(source, ": ", field.name, ": is ", value, "; allowed: ", field.allowed)));
    }
  });
  if (!status.ok()) return status;
  return defaults;
}

void Apply(const SamplingDefaults& defaults, GenerateRequest* request) {
  ForEachSamplingField(
      [&](const auto& field) { request->*field.member = defaults.params.*field.params; });
  request->default_max_tokens = defaults.max_tokens;
}

std::vector<std::pair<std::string_view, std::string>> NamedDefaults(
    const SamplingDefaults& defaults) {
  std::vector<std::pair<std::string_view, std::string>> named;
  ForEachSamplingField([&](const auto& field) {
    const auto value = defaults.params.*field.params;
    if (value != RequestFields().*field.member) named.emplace_back(field.name, StrCat(value));
  });
  if (defaults.max_tokens.has_value()) {
    named.emplace_back("max_tokens", StrCat(*defaults.max_tokens));
  }
  return named;
}

}  // namespace millrace
