#include "formats/generation_config.h"

#include <limits>

#include "base/status.h"
#include "formats/folder_file.h"
#include "formats/json_fields.h"

namespace millrace {
namespace {

constexpr char kName[] = "generation_config.json";
constexpr size_t kMaxBytes = 1 << 20;
constexpr double kAboveZero = 1e-6;

absl::Status ReadFloat(const JsonFields& fields, std::string_view name, double min, double max,
                       std::optional<float>* value) {
  if (fields.Find(name) == nullptr) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(const double number, fields.Float(name, min, max));
  *value = static_cast<float>(number);
  return absl::OkStatus();
}

absl::Status ReadInt(const JsonFields& fields, std::string_view name, int64_t min,
                     std::optional<int32_t>* value) {
  if (fields.Find(name) == nullptr) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(const int64_t number,
                            fields.Int(name, min, std::numeric_limits<int32_t>::max()));
  *value = static_cast<int32_t>(number);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GenerationConfig> ReadGenerationConfig(const std::string& folder) {
  GenerationConfig config;
  if (!HasFolderFile(folder, kName)) return config;
  MILLRACE_ASSIGN_OR_RETURN(const Json json, ReadFolderJson(folder, kName, kMaxBytes));
  const JsonFields fields(json, std::string(kName) + ": ");
  MILLRACE_RETURN_IF_ERROR(ReadFloat(fields, "temperature", 0, 2, &config.temperature));
  MILLRACE_RETURN_IF_ERROR(ReadInt(fields, "top_k", -1, &config.top_k));
  MILLRACE_RETURN_IF_ERROR(ReadFloat(fields, "top_p", kAboveZero, 1, &config.top_p));
  MILLRACE_RETURN_IF_ERROR(ReadFloat(fields, "min_p", 0, 1, &config.min_p));
  MILLRACE_RETURN_IF_ERROR(ReadFloat(fields, "typical_p", kAboveZero, 1, &config.typical_p));
  MILLRACE_RETURN_IF_ERROR(
      ReadFloat(fields, "repetition_penalty", kAboveZero, 100, &config.repetition_penalty));
  MILLRACE_RETURN_IF_ERROR(ReadInt(fields, "max_new_tokens", 1, &config.max_new_tokens));
  return config;
}

}  // namespace millrace
