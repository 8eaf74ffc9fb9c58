#include "formats/generation_config.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>

#include "base/status.h"
#include "base/strings.h"
#include "formats/files/folder_file.h"
#include "formats/gguf/gguf.h"
#include "formats/json/json_fields.h"

namespace millrace {
namespace {

constexpr char kName[] = "generation_config.json";
constexpr size_t kMaxBytes = 1 << 20;

// Fields of transformers' GenerationConfig that change what a decoder answers, and the number that
// asks for nothing, if one does, as null, false and an empty list do. Not among them: max_length,
// which most files have beside no wish, and what only works with beams, which num_beams tells.
struct Unknown {
  std::string_view name;
  std::optional<double> neutral = 0;
};
constexpr Unknown kNotFollowed[] = {{"bad_words_ids"},
                                    {"begin_suppress_tokens"},
                                    {"constraints"},
                                    {"encoder_repetition_penalty", 1},
                                    {"epsilon_cutoff"},
                                    {"eta_cutoff"},
                                    {"exponential_decay_length_penalty"},
                                    {"force_words_ids"},
                                    {"forced_bos_token_id", std::nullopt},
                                    {"forced_decoder_ids"},
                                    {"forced_eos_token_id", std::nullopt},
                                    {"guidance_scale", 1},
                                    {"min_length"},
                                    {"min_new_tokens"},
                                    {"no_repeat_ngram_size"},
                                    {"num_beams", 1},
                                    {"penalty_alpha"},
                                    {"sequence_bias"},
                                    {"stop_strings"},
                                    {"suppress_tokens"},
                                    {"top_h"},
                                    {"watermarking_config"}};

absl::Status ReadFloat(const JsonFields& fields, std::string_view name,
                       std::optional<float>* value) {
  if (fields.Find(name) == nullptr) return absl::OkStatus();
  constexpr double kMost = std::numeric_limits<float>::max();
  MILLRACE_ASSIGN_OR_RETURN(const double number, fields.Float(name, -kMost, kMost));
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

// Reads a key that holds a number of either kind.
absl::StatusOr<std::optional<double>> ReadSampling(const GgufFile& file, std::string_view name) {
  const std::string key = StrCat("general.sampling.", name);
  const GgufValue* const value = file.Find(key);
  if (value == nullptr) return std::nullopt;
  if (std::holds_alternative<double>(*value)) return file.Float(key);
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  MILLRACE_ASSIGN_OR_RETURN(const int64_t number, file.Int(key, -kMost, kMost));
  return static_cast<double>(number);
}

bool AsksForSomething(const Json& value, std::optional<double> neutral) {
  if (value.is_number()) return value.get<double>() != neutral;
  if (value.is_boolean()) return value.get<bool>();
  return !value.empty();  // null is empty, a string never
}

}  // namespace

absl::StatusOr<GenerationConfig> ReadGenerationConfig(const std::string& folder) {
  GenerationConfig config;
  if (!HasFolderFile(folder, kName)) return config;
  MILLRACE_ASSIGN_OR_RETURN(const Json json, ReadFolderJson(folder, kName, kMaxBytes));
  const JsonFields fields(json, std::string(kName) + ": ");
  MILLRACE_RETURN_IF_ERROR(ReadFloat(fields, "temperature", &config.temperature));
  MILLRACE_RETURN_IF_ERROR(
      ReadInt(fields, "top_k", std::numeric_limits<int32_t>::min(), &config.top_k));
  MILLRACE_RETURN_IF_ERROR(ReadFloat(fields, "top_p", &config.top_p));
  MILLRACE_RETURN_IF_ERROR(ReadFloat(fields, "min_p", &config.min_p));
  MILLRACE_RETURN_IF_ERROR(ReadFloat(fields, "typical_p", &config.typical_p));
  MILLRACE_RETURN_IF_ERROR(ReadFloat(fields, "repetition_penalty", &config.repetition_penalty));
  MILLRACE_RETURN_IF_ERROR(ReadInt(fields, "max_new_tokens", 1, &config.max_new_tokens));
  for (const Unknown& field : kNotFollowed) {
    const Json* value = fields.Find(field.name);
    if (value != nullptr && AsksForSomething(*value, field.neutral)) {
      config.not_followed.emplace_back(field.name);
    }
  }
  return config;
}

absl::StatusOr<GenerationConfig> ReadGgufSampling(const std::string& path) {
  GenerationConfig config;
  MILLRACE_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(path));
  const auto read = [&file](std::string_view name, auto* value) -> absl::Status {
    MILLRACE_ASSIGN_OR_RETURN(const std::optional<double> number, ReadSampling(file, name));
    if (number.has_value()) {
      *value = static_cast<typename std::decay_t<decltype(*value)>::value_type>(*number);
    }
    return absl::OkStatus();
  };
  MILLRACE_RETURN_IF_ERROR(read("temp", &config.temperature));
  MILLRACE_RETURN_IF_ERROR(read("top_k", &config.top_k));
  MILLRACE_RETURN_IF_ERROR(read("top_p", &config.top_p));
  MILLRACE_RETURN_IF_ERROR(read("min_p", &config.min_p));
  MILLRACE_RETURN_IF_ERROR(read("penalty_repeat", &config.repetition_penalty));
  // In llama.cpp what is below takes the likeliest token, or is off.
  if (config.temperature.has_value()) config.temperature = std::max(*config.temperature, 0.0f);
  if (config.top_k.has_value()) config.top_k = std::max(*config.top_k, -1);
  for (const std::string_view name : {"xtc_probability", "mirostat"}) {
    MILLRACE_ASSIGN_OR_RETURN(const std::optional<double> number, ReadSampling(file, name));
    if (number.value_or(0) != 0) config.not_followed.push_back(StrCat("general.sampling.", name));
  }
  return config;
}

}  // namespace millrace
