// SentencePiece's own file, tokenizer.model (sentencepiece_model.proto), into a TokenizerSpec.
#ifndef MILLRACE_FORMATS_TOKENIZERS_SENTENCEPIECE_MODEL_H_
#define MILLRACE_FORMATS_TOKENIZERS_SENTENCEPIECE_MODEL_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "formats/tokenizers/tokenizer_spec.h"

namespace millrace {

// The tokens that the file says are special, by their texts; empty where it has none.
struct SentencePieceTexts {
  std::string bos, eos, unknown, pad;
};

struct SentencePieceTokenizer {
  TokenizerSpec spec;
  SentencePieceTexts texts;
};

// Reads a tokenizer.model of the kinds BPE and Unigram, whose contents the spec's views point into:
// they outlive it. `name` is what errors call it. Tokens are
// those that SentencePiece itself makes, with these additions: control and unknown pieces are
// special added tokens, which a text that is parsed for them holds, and a text behind one of them
// begins with the dummy prefix again. The spec has no frame: the folder's tokenizer_config.json
// says it.
//
// INVALID_ARGUMENT for a file that is damaged or lies, UNIMPLEMENTED for word and character models,
// denormalizers, and unused pieces of BPE; each names the field.
absl::StatusOr<SentencePieceTokenizer> ReadSentencePieceModel(std::string_view contents,
                                                              const std::string& name);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TOKENIZERS_SENTENCEPIECE_MODEL_H_
