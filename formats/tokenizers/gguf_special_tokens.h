// Finds the special tokens of a GGUF file's vocabulary by their texts: files name few of them in
// keys, and some give them the type of plain text.
#ifndef MILLRACE_FORMATS_TOKENIZERS_GGUF_SPECIAL_TOKENS_H_
#define MILLRACE_FORMATS_TOKENIZERS_GGUF_SPECIAL_TOKENS_H_

#include <string_view>

#include "formats/tokenizers/gguf_tokenizer.h"

namespace millrace {

// Completes a tokenizer whose tokens, types and ids are read, as llama.cpp does:
// - fim_* that no key names are the tokens with a known text ("<fim_prefix>");
// - `ends` are eos, eot, eom, fim_padding, fim_repository, fim_separator, and every token whose
// text
//   ends an answer ("<|im_end|>"). "<|end|>" is none of them beside "<|return|>" and "<|call|>", as
//   gpt-oss ends a message by it and not an answer;
// - these tokens become control tokens, whatever the file's types say, with a warning.
// `model_name` is general.name: Phi-3's special tokens take the white space behind them along.
void FindSpecialTokens(std::string_view model_name, GgufTokenizer* gguf);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TOKENIZERS_GGUF_SPECIAL_TOKENS_H_
