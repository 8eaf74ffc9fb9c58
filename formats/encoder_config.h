// Readers of what files say of an encoder: BERT (arXiv:1810.04805), and what becomes of its states.
#ifndef MILLRACE_FORMATS_ENCODER_CONFIG_H_
#define MILLRACE_FORMATS_ENCODER_CONFIG_H_

#include <filesystem>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "formats/gguf.h"
#include "formats/json_fields.h"
#include "formats/model_config.h"

namespace millrace {

// The values of general.architecture and of config.json's `architectures`.
inline constexpr std::string_view kGgufEncoder = "bert";
inline constexpr std::string_view kHfEncoders[] = {"BertModel", "BertForMaskedLM"};

bool IsGgufEncoder(const GgufFile& file);
bool IsHfEncoder(const JsonFields& config);

// Errors are ReadModelConfig's and ReadHfConfig's. Of a GGUF file, embeddings are normalized, as
// llama.cpp's server does, which no key of the file says.
absl::StatusOr<ModelConfig> ReadGgufEncoder(const GgufFile& file);
absl::StatusOr<ModelConfig> ReadHfEncoder(const JsonFields& config);

// What sentence-transformers wrote into an encoder's folder: pooling and normalization
// (modules.json and the pooling's own config.json), and the longest text
// (sentence_bert_config.json). A folder without modules.json is what sentence-transformers makes of
// it: the mean, not normalized. UNIMPLEMENTED for other modules, other kinds of pooling, and a
// default prompt (config_sentence_transformers.json).
absl::Status ReadSentenceTransformer(const std::filesystem::path& folder, ModelConfig* config);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_ENCODER_CONFIG_H_
