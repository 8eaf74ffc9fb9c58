// How a model's authors want it sampled: generation_config.json of a Hugging Face folder, or the
// keys general.sampling.* of a GGUF file.
#ifndef MILLRACE_FORMATS_GENERATION_CONFIG_H_
#define MILLRACE_FORMATS_GENERATION_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace millrace {

// A field that a folder leaves out, or has null, is empty. As in vLLM `do_sample` says nothing: a
// temperature of 0 asks for the likeliest token.
struct GenerationConfig {
  std::optional<float> temperature;         // [0, 2]
  std::optional<int32_t> top_k;             // 0 and -1: off
  std::optional<float> top_p;               // (0, 1]
  std::optional<float> min_p;               // [0, 1]
  std::optional<float> typical_p;           // (0, 1]
  std::optional<float> repetition_penalty;  // (0, 100]
  std::optional<int32_t> max_new_tokens;    // at least 1

  // Names of what else the file asks for that would change an answer, and that we cannot do.
  std::vector<std::string> not_followed;
};

// Reads a folder's generation_config.json. Nothing is set if there is no such file.
// INVALID_ARGUMENT for a file that is damaged, or a value out of range; it names the field. Which
// tokens end an answer stands there too, and is the model's (open_model.h).
absl::StatusOr<GenerationConfig> ReadGenerationConfig(const std::string& folder);

// Reads general.sampling.* of a GGUF file, as llama.cpp's converter writes them. Errors are those
// of GgufFile::Open, and InvalidArgument for a key of another type.
absl::StatusOr<GenerationConfig> ReadGgufSampling(const std::string& path);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_GENERATION_CONFIG_H_
