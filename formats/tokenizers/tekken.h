// Mistral's tekken.json into a TokenizerSpec.
#ifndef MILLRACE_FORMATS_TOKENIZERS_TEKKEN_H_
#define MILLRACE_FORMATS_TOKENIZERS_TEKKEN_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "formats/tokenizers/tokenizer_spec.h"

namespace millrace {

// Reads a tekken.json as mistral-common does. `name` is what errors call it. The vocabulary is
// tiktoken's: bytes by their rank, merged by it, behind the special tokens, whose number the config
// says; special tokens that the file does not name are "<SPECIAL_n>". Text begins with <s> (the
// frame) and answers end at </s>.
//
// INVALID_ARGUMENT for a file that lies; the message names the field.
absl::StatusOr<TokenizerSpec> ReadTekken(std::string_view text, const std::string& name);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TOKENIZERS_TEKKEN_H_
