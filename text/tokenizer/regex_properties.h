// Gives regular expressions the Unicode properties of Hugging Face's
// tokenizers.
#ifndef MILLRACE_TEXT_TOKENIZER_REGEX_PROPERTIES_H_
#define MILLRACE_TEXT_TOKENIZER_REGEX_PROPERTIES_H_

#include <string>
#include <string_view>

namespace millrace {

// Returns the expression with each property (\p{L}, [[:punct:]], \w, \d) whose
// characters Oniguruma 6.9.8 and the tokenizers' Oniguruma see differently
// spelled out: \p{L} becomes [\p{L}\x{1c89}...]. \b stays as it is.
std::string WithCurrentProperties(std::string_view regex);

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOKENIZER_REGEX_PROPERTIES_H_
