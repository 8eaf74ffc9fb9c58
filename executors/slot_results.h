// What was sampled becomes a step's result, the same way on every device.
#ifndef MILLRACE_EXECUTORS_SLOT_RESULTS_H_
#define MILLRACE_EXECUTORS_SLOT_RESULTS_H_

#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/step_plan.h"

namespace millrace {

// What came of one WantedLogits.
struct Sampled {
  bool ok = false;  // false: a logit was not finite, and the rest means nothing
  Token token = 0;
  std::optional<float> logprob;
  int32_t rank = 0;
  std::vector<TokenLogprob> top;
};

// Remembers which sequences failed: what follows from a failed row fails with it. Steps in order.
class SlotResults {
 public:
  explicit SlotResults(const StepLimits& limits) : failed_(limits.max_num_seqs) {}

  // `sampled`: as many as the plan wants logits of, in its order, or more.
  StepResult Make(const StepPlan& plan, absl::Span<const Sampled> sampled);

 private:
  std::vector<bool> failed_;  // by slot
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_SLOT_RESULTS_H_
