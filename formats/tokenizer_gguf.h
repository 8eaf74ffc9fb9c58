// The tokenizer that a GGUF file means: the file has the vocabulary and names the rest.
#ifndef MILLRACE_FORMATS_TOKENIZER_GGUF_H_
#define MILLRACE_FORMATS_TOKENIZER_GGUF_H_

#include "absl/status/statusor.h"
#include "formats/tokenizer_config.h"
#include "formats/tokenizer_spec.h"

namespace millrace {

// Views of the config's stay in the spec. INVALID_ARGUMENT for a config that lies, UNIMPLEMENTED
// for a tokenizer.ggml.pre that is not known; each names the key, and what is supported.
absl::StatusOr<TokenizerSpec> MakeTokenizerSpec(const TokenizerConfig& config);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TOKENIZER_GGUF_H_
