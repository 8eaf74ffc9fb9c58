// Normalizes text as SentencePiece itself does (Kudo and Richardson, arXiv:1808.06226).
#ifndef MILLRACE_TEXT_TOKENIZER_SENTENCEPIECE_NORMALIZER_H_
#define MILLRACE_TEXT_TOKENIZER_SENTENCEPIECE_NORMALIZER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "formats/tokenizers/tokenizer_spec.h"
#include "text/tokenizer/normalizer.h"

namespace millrace {

// Returns the step that maps characters, removes white space, puts a space before the text and
// makes U+2581 of spaces. What it makes has no bytes of a first character: no step behind it asks.
absl::StatusOr<std::unique_ptr<const Normalizer::Step>> MakeSentencePieceStep(
    const SentencePieceNormalizer& spec);

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOKENIZER_SENTENCEPIECE_NORMALIZER_H_
