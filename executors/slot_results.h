// Converts sampled tokens to a step's result, the same way on every device.
#ifndef MILLRACE_EXECUTORS_SLOT_RESULTS_H_
#define MILLRACE_EXECUTORS_SLOT_RESULTS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "plan/step_plan.h"

namespace millrace {

// The outcome of one WantedLogits.
struct Sampled {
  bool ok = false;  // false if a logit was not finite; the other fields are then undefined
  Token token = 0;
  std::optional<float> logprob;
  int32_t rank = 0;
  std::vector<TokenLogprob> top;
};

// Returns how many tokens of a row's draft its samples, `sampled` of the row's WantedLogits, have
// accepted: those before the first that is another.
int32_t AcceptedDraft(const StepPlan& plan, const StepRow& row, absl::Span<const Sampled> sampled);

// Makes step results, in step order. It remembers failed sequences, whose later rows fail too.
class SlotResults {
 public:
  explicit SlotResults(const StepLimits& limits) : failed_(limits.max_num_seqs) {}

  // Makes the result of `plan`. `sampled` has one entry per position whose logits the plan wants,
  // in plan order; further entries are ignored.
  StepResult Make(const StepPlan& plan, absl::Span<const Sampled> sampled);

  // Makes the result of a plan that could not be computed, all of whose rows fail by `why`.
  StepResult Fail(const StepPlan& plan, const absl::Status& why);

 private:
  // Begins the result of `plan`, whose moves have been made.
  StepResult Begin(const StepPlan& plan);

  std::vector<absl::Status> failed_;  // by slot
  int64_t moves_ = 0;                 // of all plans: each is complete before its step's rows run
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_SLOT_RESULTS_H_
