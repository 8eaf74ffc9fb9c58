// The tokenizer that a GGUF file means: the file has the vocabulary and names the rest.
#ifndef MILLRACE_FORMATS_TOKENIZERS_TOKENIZER_GGUF_H_
#define MILLRACE_FORMATS_TOKENIZERS_TOKENIZER_GGUF_H_

#include "absl/status/statusor.h"
#include "formats/tokenizers/gguf_tokenizer.h"
#include "formats/tokenizers/tokenizer_spec.h"

namespace millrace {

// Views of the file's stay in the spec. INVALID_ARGUMENT for values that lie, UNIMPLEMENTED for a
// tokenizer.ggml.pre that is not known; each names the key, and what is supported.
absl::StatusOr<TokenizerSpec> MakeTokenizerSpec(const GgufTokenizer& gguf);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TOKENIZERS_TOKENIZER_GGUF_H_
