// The merges of a byte-pair encoding that is stored as tokens with scores.
#ifndef MILLRACE_FORMATS_TOKENIZERS_SCORE_MERGES_H_
#define MILLRACE_FORMATS_TOKENIZERS_SCORE_MERGES_H_

#include <string_view>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "formats/tokenizers/tokenizer_spec.h"

namespace millrace {

// SentencePiece's BPE (and tiktoken's, with scores that fall with the rank) merges whatever pair
// makes the token of the highest score. Returns the same as a list, in the order in which
// transformers writes it: every pair of tokens that makes a token, the best first. The views are
// those of `tokens`, which stand in the order of their ids.
std::vector<std::pair<std::string_view, std::string_view>> MergesByScore(
    absl::Span<const VocabularyEntry> tokens);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TOKENIZERS_SCORE_MERGES_H_
