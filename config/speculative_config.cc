#include "config/speculative_config.h"

#include <yaml-cpp/yaml.h>

#include <optional>
#include <string>

#include "base/status.h"
#include "base/strings.h"
#include "config/value.h"

namespace millrace {
namespace {

constexpr std::string_view kMethods = "ngram, suffix, none";
constexpr std::string_view kKeys =
    "method, num_speculative_tokens, prompt_lookup_min, prompt_lookup_max";
constexpr int32_t kMaxMatch = 1024;

absl::Status ReadNumber(const std::string& key, const YAML::Node& value, int32_t least,
                        int32_t most, int32_t& number) {
  const std::string text = value.IsScalar() ? value.Scalar() : "";
  const std::optional<int32_t> read = ParseNumber<int32_t>(text);
  if (!read.has_value() || *read < least || *read > most) {
    return absl::InvalidArgumentError(
        StrCat(key, " is \"", Printable(text), "\"; allowed: ", least, " to ", most));
  }
  number = *read;
  return absl::OkStatus();
}

absl::Status ReadMethod(const YAML::Node& value, bool& lookup) {
  const std::string method = value.IsScalar() ? value.Scalar() : "";
  lookup = method == "ngram" || method == "suffix";
  if (lookup || method == "none") return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("method is \"", Printable(method),
                                           "\"; allowed: ", kMethods,
                                           " (drafts of another model are not supported)"));
}

absl::StatusOr<SpeculativeConfig> ReadKeys(const YAML::Node& root) {
  SpeculativeConfig config;
  int32_t lookup_max = kMaxMatch;
  for (const auto& entry : root) {
    const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "";
    const YAML::Node& value = entry.second;
    if (key == "method") {
      MILLRACE_RETURN_IF_ERROR(ReadMethod(value, config.lookup));
    } else if (key == "num_speculative_tokens") {
      MILLRACE_RETURN_IF_ERROR(
          ReadNumber(key, value, 1, kMaxSpeculativeTokens, config.num_speculative_tokens));
    } else if (key == "prompt_lookup_min") {
      MILLRACE_RETURN_IF_ERROR(ReadNumber(key, value, 1, kMaxMatch, config.prompt_lookup_min));
    } else if (key == "prompt_lookup_max") {
      MILLRACE_RETURN_IF_ERROR(ReadNumber(key, value, 1, kMaxMatch, lookup_max));
    } else {
      return absl::InvalidArgumentError(
          StrCat("there is no key \"", Printable(key), "\"; allowed: ", kKeys));
    }
  }
  // Of the places with the last prompt_lookup_max tokens the one with the longest match is taken,
  // so that nothing else depends on that number.
  if (lookup_max < config.prompt_lookup_min) {
    return absl::InvalidArgumentError(StrCat("prompt_lookup_max is ", lookup_max,
                                             "; allowed: at least prompt_lookup_min, ",
                                             config.prompt_lookup_min));
  }
  return config;
}

}  // namespace

absl::StatusOr<SpeculativeConfig> ParseSpeculativeConfig(std::string_view json) {
  if (json.empty()) return SpeculativeConfig();
  try {
    const YAML::Node root = YAML::Load(std::string(json));
    if (root.IsMap()) return ReadKeys(root);
  } catch (const YAML::Exception&) {
    // JSON is YAML, too.
  }
  return absl::InvalidArgumentError("expected a JSON object, as {\"method\": \"ngram\"}");
}

}  // namespace millrace
