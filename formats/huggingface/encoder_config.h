// Reader of what sentence-transformers writes beside a config.json.
#ifndef MILLRACE_FORMATS_HUGGINGFACE_ENCODER_CONFIG_H_
#define MILLRACE_FORMATS_HUGGINGFACE_ENCODER_CONFIG_H_

#include <filesystem>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "formats/model/model_config.h"

namespace millrace {

// Reads what sentence-transformers wrote into the folder of an encoder or of a decoder with a
// pooler, in the layouts before and since its version 5.4: pooling, Dense layers and normalization
// (modules.json and the modules' own config.json), the longest text (sentence_bert_config.json,
// tokenizer_config.json), and the default prompt and a cross-encoder's function
// (config_sentence_transformers.json). An encoder's folder without modules.json is what
// sentence-transformers makes of it: the mean, not normalized; a decoder's leaves the pooler as it
// is. UNIMPLEMENTED for other modules and other kinds of pooling.
absl::Status ReadSentenceTransformer(const std::filesystem::path& folder, ModelConfig* config);

// Returns whether the folder has a modules.json that lists a pooling.
absl::StatusOr<bool> HasPoolingModule(const std::filesystem::path& folder);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_HUGGINGFACE_ENCODER_CONFIG_H_
