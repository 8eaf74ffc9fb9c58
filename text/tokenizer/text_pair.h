// Pairs of texts as the tokens of one sequence.
#ifndef MILLRACE_TEXT_TOKENIZER_TEXT_PAIR_H_
#define MILLRACE_TEXT_TOKENIZER_TEXT_PAIR_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "base/token.h"
#include "formats/tokenizers/tokenizer_spec.h"

namespace millrace {

struct PairTokens {
  std::vector<Token> tokens;
  std::optional<int32_t> second_type;  // index of the first token of the second type, if there are
};

// Returns the number of tokens that a frame of pairs adds.
int32_t FrameSize(absl::Span<const PairPart> frame);

// Puts the frame around two texts' tokens, encoded without a frame of their own. With `most`, more
// than the frame's size, the texts are first cut to that many tokens in all, the longer one before
// the other: the strategy "longest_first" of Hugging Face's tokenizers.
PairTokens JoinPair(absl::Span<const PairPart> frame, absl::Span<const Token> first,
                    absl::Span<const Token> second, std::optional<int32_t> most);

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOKENIZER_TEXT_PAIR_H_
