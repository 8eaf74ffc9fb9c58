// Loads a converted folder and scores a prompt with it.
#ifndef MILLRACE_SERVER_CONVERT_PROMPT_CHECK_H_
#define MILLRACE_SERVER_CONVERT_PROMPT_CHECK_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/step_plan.h"

namespace millrace {

// A token of a prompt, and its log-probability behind those before it.
struct ScoredToken {
  Token token;
  std::string text;
  float logprob = 0;  // natural logarithm
};

// Opens the model of a folder on the CPU and returns the prompt's tokens; the first, before which
// there is nothing, has 0. Errors are those of opening the model and its tokenizer;
// INVALID_ARGUMENT for a prompt of fewer than 2 tokens or more than 4096.
absl::StatusOr<std::vector<ScoredToken>> ScorePrompt(const std::string& folder,
                                                     const std::string& prompt);

// Returns them as a table, with their mean.
std::string ScoreTable(const std::vector<ScoredToken>& tokens);

}  // namespace millrace

#endif  // MILLRACE_SERVER_CONVERT_PROMPT_CHECK_H_
