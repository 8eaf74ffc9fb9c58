// The pre-tokenizers that a GGUF file names instead of spelling them out (tokenizer.ggml.pre).
#ifndef MILLRACE_FORMATS_TOKENIZERS_TOKENIZER_PRE_H_
#define MILLRACE_FORMATS_TOKENIZERS_TOKENIZER_PRE_H_

#include <span>
#include <string_view>
#include <vector>

#include "formats/tokenizers/tokenizer_spec.h"

namespace millrace {

// The steps before a BPE model, as the authors of the models that a name stands for published them
// in tokenizer.json.
struct GgufPreTokenizer {
  std::vector<std::string_view> names;
  std::vector<PreTokenizerSpec> steps;
  bool nfc = false;            // The text is composed first.
  bool ignore_merges = false;  // A piece that is a token as it stands is taken whole.
  bool add_bos = false;        // The value where the file has no tokenizer.ggml.add_bos_token.
};

// Returns every pre-tokenizer of byte-level BPE that llama.cpp writes or reads (as of
// llama-cpp-python 0.3.36), and "default" for files that are older than the key.
std::span<const GgufPreTokenizer> GgufPreTokenizers();

// Returns the one of this name, or null.
const GgufPreTokenizer* FindGgufPreTokenizer(std::string_view name);

// Returns whether files of this name have SentencePiece's kind of BPE, with U+2581 for a space and
// without a pre-tokenizer, although their tokenizer.ggml.model is "gpt2".
bool IsSentencePiecePre(std::string_view name);

// Returns all names, sorted.
std::vector<std::string_view> GgufPreNames();

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TOKENIZERS_TOKENIZER_PRE_H_
