// The character classes of Hugging Face's tokenizers, for Oniguruma.
#ifndef MILLRACE_TEXT_TOKENIZER_REGEX_ENCODING_H_
#define MILLRACE_TEXT_TOKENIZER_REGEX_ENCODING_H_

#include <string_view>
#include <vector>

#include "text/tokenizer/code_range.h"

struct OnigEncodingTypeST;  // Oniguruma's OnigEncodingType

namespace millrace {

// Returns Oniguruma's UTF-8 in which \p{...}, [[:...:]], \w, \d, \s, \h and \b have the members
// that they have in the Oniguruma of Hugging Face's tokenizers, whatever version is installed. It
// knows their names, too. Constant after the first call.
OnigEncodingTypeST* TokenizerEncoding();

// Returns the members of \p{name} in that encoding, ascending; none when it has no such class.
std::vector<CodeRange> MembersOfClass(std::string_view name);

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOKENIZER_REGEX_ENCODING_H_
