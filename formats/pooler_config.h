// Decides whether a decoder makes embeddings instead of text, and how it pools them.
#ifndef MILLRACE_FORMATS_POOLER_CONFIG_H_
#define MILLRACE_FORMATS_POOLER_CONFIG_H_

#include <filesystem>

#include "absl/status/status.h"
#include "formats/gguf/gguf.h"
#include "formats/model/model_config.h"

namespace millrace {

// Set the pooler of a decoder that makes embeddings, and let it be without a head. By kAuto that is
// a folder whose modules.json lists a pooling or whose architecture has no head ("Qwen3Model"), and
// a GGUF file whose <architecture>.pooling_type is 1 (mean) or 3 (last). Where the files leave it
// unsaid, an embedding is the last token's normed state, normalized, as vLLM has it; a GGUF file's
// are normalized, as llama.cpp has it. How a folder's are pooled, ReadSentenceTransformer reads.
//
// INVALID_ARGUMENT if the model is not what `runner` demands, UNIMPLEMENTED for other kinds of
// pooling.
absl::Status ChoosePooler(const std::filesystem::path& folder, ModelRunner runner,
                          ModelConfig* config);
absl::Status ChoosePooler(const GgufFile& file, ModelRunner runner, ModelConfig* config);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_POOLER_CONFIG_H_
