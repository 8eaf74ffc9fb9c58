// Reader of what sentence-transformers writes beside an encoder's config.json.
#ifndef MILLRACE_FORMATS_ENCODER_CONFIG_H_
#define MILLRACE_FORMATS_ENCODER_CONFIG_H_

#include <filesystem>

#include "absl/status/status.h"
#include "formats/model_config.h"

namespace millrace {

// Reads what sentence-transformers wrote into an encoder's folder: pooling and normalization
// (modules.json and the pooling's own config.json), and the longest text
// (sentence_bert_config.json). A folder without modules.json is what sentence-transformers makes of
// it: the mean, not normalized. UNIMPLEMENTED for other modules, other kinds of pooling, and a
// default prompt (config_sentence_transformers.json).
absl::Status ReadSentenceTransformer(const std::filesystem::path& folder, ModelConfig* config);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_ENCODER_CONFIG_H_
