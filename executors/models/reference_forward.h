// For tests: the Llama family in double precision, straight from the definition.
#ifndef MILLRACE_EXECUTORS_MODELS_REFERENCE_FORWARD_H_
#define MILLRACE_EXECUTORS_MODELS_REFERENCE_FORWARD_H_

#include <vector>

#include "absl/types/span.h"
#include "formats/open_model.h"
#include "scheduler/step_plan.h"

namespace millrace {

// The logits after each token, [tokens][vocab]. Weights are dequantized (FP8 ones by their scales),
// nothing else is ever rounded. `model` has data. Takes a second or so a million weights and a
// hundred tokens: for tiny models.
std::vector<std::vector<double>> ReferenceLogits(const OpenedModel& model,
                                                 absl::Span<const Token> tokens);

// log softmax(logits)[token].
double ReferenceLogprob(const std::vector<double>& logits, Token token);

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_MODELS_REFERENCE_FORWARD_H_
