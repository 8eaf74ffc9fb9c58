// The code that the Gemma families share.
#ifndef MILLRACE_FORMATS_FAMILIES_GEMMA_H_
#define MILLRACE_FORMATS_FAMILIES_GEMMA_H_

#include <optional>

#include "formats/families/gguf_reader.h"
#include "formats/families/hf_reader.h"

namespace millrace {

// Reads a folder's config. Gemma's layers norm before and after their blocks and gate by GELU;
// embeddings are scaled. A folder's norms hold what is added to 1, and query_pre_attn_scalar gives
// the scores' scale.
absl::StatusOr<ModelConfig> ReadHfGemma(const HfReader& config, const HfDefaults& defaults,
                                        std::optional<RopeConfig>* window_rope = nullptr);

// Reads a GGUF file's config. GGUF files hold norms' weights with their 1, and nothing of
// query_pre_attn_scalar, which differs from the head size in the model of so many layers.
absl::StatusOr<ModelConfig> ReadGgufGemma(const GgufReader& file, int layers_of_27b);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_FAMILIES_GEMMA_H_
