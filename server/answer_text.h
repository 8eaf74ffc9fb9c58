// From sampled tokens to the events of one answer: text, stop strings, log-probabilities.
#ifndef MILLRACE_SERVER_ANSWER_TEXT_H_
#define MILLRACE_SERVER_ANSWER_TEXT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/types/span.h"
#include "scheduler/step_plan.h"
#include "server/request.h"
#include "server/text/detokenizer.h"
#include "server/text/stop_checker.h"
#include "server/text/tokenizer.h"

namespace millrace {

// Belongs to one thread at a time. `tokenizer` and `request` must outlive it.
class AnswerText {
 public:
  AnswerText(const Tokenizer* tokenizer, const GenerateRequest* request);

  // The next prompt tokens' log-probabilities, beginning with the second token's.
  void AddScored(const StepResult& result, Range scored);
  // The echoed prompt, with what was scored of it. Called once.
  OutputEvent Echo(absl::Span<const Token> prompt);

  // What one sampled token adds to `event`. A stop token that ended the answer is counted, but its
  // text is hidden unless include_stop_str_in_output asks for it. Must not be called once
  // stopped().
  void Add(const StepResult& result, const TokenResult& token, bool is_stop_token,
           OutputEvent* event);

  // The answer ended by itself: appends what was held back. May still find a stop string.
  void Flush(OutputEvent* event);

  // The stop string that ended the answer.
  const std::string* stopped() const {
    return stopped_.has_value() ? &request_->stop[*stopped_] : nullptr;
  }
  int32_t num_tokens() const { return num_tokens_; }
  // Of these tokens; nothing without log-probabilities.
  std::optional<double> mean_logprob() const;

 private:
  void AddText(const std::string& text, OutputEvent* event);
  TokenDetail Detail(const StepResult& result, const TokenResult& token) const;

  const Tokenizer* tokenizer_;
  const GenerateRequest* request_;
  Detokenizer detokenizer_;
  StopChecker stops_;
  std::optional<size_t> stopped_;
  int32_t num_tokens_ = 0;
  int32_t num_logprobs_ = 0;
  double sum_logprobs_ = 0;
  std::vector<TokenDetail> scored_;  // of the prompt's second token and so on
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_ANSWER_TEXT_H_
