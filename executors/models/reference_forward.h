// For tests: the Llama family in double precision, straight from the definition.
#ifndef MILLRACE_EXECUTORS_MODELS_REFERENCE_FORWARD_H_
#define MILLRACE_EXECUTORS_MODELS_REFERENCE_FORWARD_H_

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "formats/open_model.h"
#include "plan/step_plan.h"

namespace millrace {

// Returns the log-probabilities, log softmax(logits)[token], of the tokens but the first by the
// model of a file or folder. Weights are dequantized (FP8 ones by their scales), nothing else is
// ever rounded. Takes a second or so a million weights and a hundred tokens: for tiny models. Ends
// the program on an error.
std::vector<double> ReferenceLogprobs(const std::string& path, absl::Span<const Token> tokens);

// Returns the largest difference; infinite where one is not a number, or the lengths are not the
// same.
template <typename Number, typename Reference>
double WorstError(const std::vector<Number>& logprobs, const std::vector<Reference>& reference) {
  if (logprobs.size() != reference.size()) return INFINITY;
  double worst = 0;
  for (size_t i = 0; i < logprobs.size(); ++i) {
    const double error = std::abs(double{logprobs[i]} - reference[i]);
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  return worst;
}

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_MODELS_REFERENCE_FORWARD_H_
