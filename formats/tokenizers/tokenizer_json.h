// tokenizer.json, as Hugging Face's tokenizers write it, into a TokenizerSpec.
#ifndef MILLRACE_FORMATS_TOKENIZERS_TOKENIZER_JSON_H_
#define MILLRACE_FORMATS_TOKENIZERS_TOKENIZER_JSON_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "formats/json/json_fields.h"
#include "formats/tokenizers/tokenizer_spec.h"

namespace millrace {

// Reads a tokenizer.json. `text` is the file's contents, `name` what errors call it; the spec keeps
// what it needs of both. bos, eos, pad and end_of_generation stay empty: tokenizer.json does not
// say them. `truncation` and `padding` are settings of a caller's batch, which transformers resets
// too, and are left alone.
//
// INVALID_ARGUMENT for a file that lies, UNIMPLEMENTED for a part that is not known; each names the
// field, and what is supported.
absl::StatusOr<TokenizerSpec> ReadTokenizerJson(std::string_view text, const std::string& name);

// Reads one token of `added_tokens`, or of tokenizer_config.json's added_tokens_decoder, without
// its id.
absl::StatusOr<AddedTokenSpec> ReadAddedToken(const JsonFields& fields);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TOKENIZERS_TOKENIZER_JSON_H_
