// Turns sampled tokens into the events of one answer: text, stop strings, log-probabilities. Stop
// strings are searched in what is no reasoning.
#ifndef MILLRACE_ENGINE_ANSWER_ANSWER_TEXT_H_
#define MILLRACE_ENGINE_ANSWER_ANSWER_TEXT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/types/span.h"
#include "engine/request/request.h"
#include "plan/step_plan.h"
#include "text/detokenizer.h"
#include "text/stop_checker.h"
#include "text/tokenizer/tokenizer.h"

namespace millrace {

// Belongs to one thread at a time. `tokenizer` and `request` must outlive it.
class AnswerText {
 public:
  AnswerText(const Tokenizer* tokenizer, const GenerateRequest* request);

  // Tells the prompt's tokens, which the answer's text goes on from. Call before the first Add.
  void Follow(absl::Span<const Token> prompt) { detokenizer_.Follow(prompt); }

  // Splits the text with `parser` from now on. `begun` is the beginning of the answer that stands
  // in the prompt. `kept`: special tokens that the parser needs; outlives this. `one_call`: the
  // answer ends with its first call. Call before the first Add.
  void Parse(std::unique_ptr<OutputParser> parser, std::string_view begun,
             const std::vector<Token>* kept, bool one_call);

  // Adds the log-probabilities of the next prompt tokens, beginning with the second token's.
  void AddScored(const StepResult& result, Range scored);
  // Returns the echoed prompt, with what was scored of it. Called once.
  OutputEvent Echo(absl::Span<const Token> prompt);

  // Adds one sampled token to `event`. A stop token that ended the answer is counted, but its
  // text is hidden unless include_stop_str_in_output asks for it. Must not be called once
  // stopped().
  void Add(const StepResult& result, const TokenResult& token, bool is_stop_token,
           OutputEvent* event);

  // Appends the text that was held back, when the answer has ended without a stop string. May still
  // find one.
  void Flush(OutputEvent* event);

  // Ends the parser's work, after Flush or a stop string. `end`: whether the tokens were used up.
  void FinishParsing(AnswerEnd end, OutputEvent* event);

  // Returns whether a stop string, or the only call, ended the answer.
  bool ended() const { return stopped_.has_value() || called_; }

  // Returns the stop string that ended the answer.
  const std::string* stopped() const {
    return stopped_.has_value() ? &request_->stop[*stopped_] : nullptr;
  }
  int32_t num_tokens() const { return num_tokens_; }
  int32_t num_reasoning_tokens() const { return num_reasoning_tokens_; }
  // Returns the mean over these tokens; nothing without log-probabilities.
  std::optional<double> mean_logprob() const;

 private:
  void CountReasoning();
  void AddText(const std::string& text, OutputEvent* event);
  void AddOutsideReasoning(std::string_view text, OutputEvent* event);
  void Emit(std::string_view text, OutputEvent* event);
  void Move(OutputDelta delta, OutputEvent* event) const;
  TokenDetail Detail(const StepResult& result, const TokenResult& token) const;
  bool Skips(Token token) const;

  const Tokenizer* tokenizer_;
  const GenerateRequest* request_;
  Detokenizer detokenizer_;
  StopChecker stops_;
  std::optional<size_t> stopped_;
  int32_t num_tokens_ = 0;
  std::unique_ptr<OutputParser> parser_;  // null: the text is the content
  OutputDelta begun_;                     // what the prompt's end is of the answer
  bool one_call_ = false;
  bool called_ = false;
  int32_t num_reasoning_tokens_ = 0;
  int32_t num_undecided_tokens_ = 0;  // at the end of the reasoning: they may be a call's
  int32_t num_logprobs_ = 0;
  double sum_logprobs_ = 0;
  std::vector<TokenDetail> scored_;  // of the prompt's second token and so on
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_ANSWER_ANSWER_TEXT_H_
