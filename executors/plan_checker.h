// Checks that a plan is consistent with earlier plans, which is the half of the contract that
// ValidatePlan cannot check.
#ifndef MILLRACE_EXECUTORS_PLAN_CHECKER_H_
#define MILLRACE_EXECUTORS_PLAN_CHECKER_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "executors/executor.h"
#include "plan/step_plan.h"

namespace millrace {

// The check that every executor applies before it accepts a plan. Used by the submitting thread.
class PlanChecker {
 public:
  explicit PlanChecker(const ModelInfo& info)
      : limits_(info.limits),
        late_masks_(info.takes_late_masks),
        max_draft_tokens_(info.max_draft_tokens),
        max_step_draft_tokens_(info.max_step_draft_tokens),
        slots_(info.limits.max_num_seqs) {}

  // Applies ValidatePlan and checks: ids ascend; a row's slot was started; a row begins where its
  // slot's last one ended, or, behind drafts, may have ended (in a fresh slot anywhere, at the end
  // of the cached prefix that it names); each of its positions has a block; sampled_by is the last
  // step that sampled for the slot; no block is missing of a window that the row reads, and no
  // state of a fresh slot's row behind position 0; masks are late, and drafts so long, only if the
  // executor takes such. Returns InvalidArgument, naming row and field, and records nothing
  // otherwise; Unimplemented for a move from or to the host, which no executor does. Linear in the
  // size of the plan.
  absl::Status Check(const StepPlan& plan);

  // Checks that a plan has a place for each of these masks, which had none yet, and that the masks
  // have the vocabulary's size. Returns InvalidArgument, and records nothing, otherwise.
  absl::Status CheckMasks(absl::Span<const LateMask> masks);

  // Checks that each of these drafts is one that a row waits for. Returns InvalidArgument, and
  // records nothing, otherwise.
  absl::Status CheckDrafts(absl::Span<const LateDraft> drafts);

 private:
  struct Slot {
    bool started = false;
    std::optional<int32_t> next_position;  // after its first row, if every draft is accepted
    int32_t least_position = 0;            // if none is
    int32_t num_blocks = 0;                // in each of its tables
    std::optional<StepId> last_sampled;
  };
  absl::Status CheckRow(const StepPlan& plan, size_t i, const Slot& slot) const;
  absl::Status CheckState(const StepPlan& plan, size_t i) const;
  absl::Status CheckWindows(const StepPlan& plan, size_t i, const Slot& slot) const;

  StepLimits limits_;
  bool late_masks_;
  int32_t max_draft_tokens_;
  int32_t max_step_draft_tokens_;
  std::vector<Slot> slots_;
  StepId last_id_ = 0;
  absl::flat_hash_set<std::pair<StepId, int32_t>> awaited_;  // the step and its logits, of masks
  // By the step and the row, of drafts: the most tokens.
  absl::flat_hash_map<std::pair<StepId, int32_t>, int32_t> awaited_drafts_;
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_PLAN_CHECKER_H_
