// Reader of tokenizer.json's template of pairs of texts.
#ifndef MILLRACE_FORMATS_TOKENIZERS_PAIR_FRAME_H_
#define MILLRACE_FORMATS_TOKENIZERS_PAIR_FRAME_H_

#include <vector>

#include "formats/json/json.h"
#include "formats/tokenizers/tokenizer_spec.h"

namespace millrace {

// Reads the parts around two texts out of a post_processor that ReadFrame has accepted. Empty where
// it has no template of pairs, or one that a model of pairs cannot use: each text must come once,
// the first one before the second, and types must be 0 and then 1. Only a model of pairs needs it.
std::vector<PairPart> ReadPairFrame(const Json& post_processor);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TOKENIZERS_PAIR_FRAME_H_
