// Reader of the config.json that Hugging Face's transformers writes beside a model's weights.
#ifndef MILLRACE_FORMATS_HUGGINGFACE_HF_CONFIG_H_
#define MILLRACE_FORMATS_HUGGINGFACE_HF_CONFIG_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "formats/families/model_tensors.h"
#include "formats/model/model_config.h"

namespace millrace {

struct Family;

struct HfConfig {
  const Family* family = nullptr;  // never null
  ModelConfig model;
  StoredTypes types;  // of what is not quantized: `dtype`, and MXFP4 of gpt-oss's experts
  // Modules of the layers that the quantization left alone, as the file spells them.
  std::vector<std::string> unquantized;
};

// Reads the config of every family in families/families.h. Decoders may have FP8 linears as
// `quantization_config` says in the dialects of compressed-tensors and of `quant_method: fp8`
// (static or dynamic activations, or DeepSeek's blocks of weights), and four bits. What
// sentence-transformers says of encoders stands in other files
// (formats/huggingface/encoder_config.h).
//
// `file` is the name for messages. INVALID_ARGUMENT for what is not a config or out of range,
// UNIMPLEMENTED, by the field's name, for what would change the maths and is not built. Fields that
// transformers' models of these names do not read change nothing and are left alone.
absl::StatusOr<HfConfig> ReadHfConfig(std::string_view json, const std::string& file);

// Reads the settings of GPTQ and AWQ that early versions of AutoGPTQ and AutoAWQ wrote into a file
// beside a config.json which says nothing of a quantization. Errors as above.
absl::Status ReadQuantizeConfig(std::string_view json, const std::string& file, HfConfig* config);

// Returns the tokens that end an answer, `eos_token_id`, a number or a list of them, of a
// config.json or a generation_config.json; empty where it names none.
absl::StatusOr<std::vector<int32_t>> ReadEndTokens(std::string_view json, const std::string& file);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_HUGGINGFACE_HF_CONFIG_H_
