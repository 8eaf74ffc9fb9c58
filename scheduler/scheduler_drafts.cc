// What of Scheduler has to do with drafts.
#include <algorithm>
#include <utility>

#include "scheduler/scheduler.h"
#include "scheduler/scheduler_draft.h"

namespace millrace {
namespace {

// Of how many more positions the time is predicted: few change less than steps differ anyway.
constexpr int32_t kProbedPositions = 8;
// The cost of a position (DraftRecord::WorthDrafting) while steps have not told it.
constexpr double kUnknownCost = 0.3;
// Where prompts run or wait, drafts take one in so many of a step's tokens at most.
constexpr int32_t kShareBesidePrompts = 4;

}  // namespace

// Returns the time that one more position of a sequence that decodes takes, as a share of the time
// in which the step samples a token without drafts.
double Scheduler::CostOfPosition(int32_t rows, int64_t context) const {
  if (rows == 0) return kUnknownCost;
  const Duration plain = budget_.Predict({.decode_rows = rows, .decode_context = context});
  const Duration more =
      budget_.Predict({.decode_rows = rows + kProbedPositions,
                       .decode_context = context + context / rows * kProbedPositions});
  if (plain <= Duration::zero() || more <= plain) return kUnknownCost;
  const auto added = static_cast<double>((more - plain).count()) / kProbedPositions;
  return added * rows / static_cast<double>(plain.count());
}

// How long a draft may be by where the sequence stands: behind the row at least one more input is
// left for the step that is planned before it is known what of the draft is right.
int32_t Scheduler::LongestDraft(const Sequence& sequence) const {
  if (sequence.draft.empty() || !sequence.decoding() || sequence.num_ready() != 1) return 0;
  int32_t most = std::min(options_.num_draft_tokens, sequence.max_inputs - sequence.computed - 2);
  // A draft does not go past where the state is to be copied: behind it stands a wait until it is
  // known what of it was right.
  if (sequence.copy_due > 0) most = std::min(most, sequence.copy_due - sequence.computed - 1);
  if (sequence.rows_in_flight == 0) {
    most = std::min(most, static_cast<int32_t>(sequence.draft.size()));
  }
  return std::max(most, 0);
}

// Chooses how long the drafts of this step's rows may be. A draft is planned where the drafter knew
// one at the last commit: whether it still does is known when the step in flight ends.
void Scheduler::ChooseDrafts(Draft& draft, int32_t rows, int64_t context) {
  if (options_.num_draft_tokens == 0) return;
  int32_t left = std::min(draft.budget - static_cast<int32_t>(running_.size()),
                          options_.num_step_draft_tokens);
  const bool prompts_wait = !waiting_.empty() || rows < static_cast<int32_t>(running_.size());
  if (prompts_wait) left = std::min(left, draft.budget / kShareBesidePrompts);
  std::optional<double> cost;
  for (Sequence* const sequence : running_) {
    sequence->planned_draft = std::min(LongestDraft(*sequence), left);
    if (sequence->planned_draft <= 0) {
      sequence->planned_draft = 0;
      continue;
    }
    if (!cost.has_value()) cost = CostOfPosition(rows, context);
    sequence->planned_draft = sequence->record.WorthDrafting(*cost, sequence->planned_draft);
    left -= sequence->planned_draft;
  }
}

// Adds the draft to a row that is being planned.
void Scheduler::AddDraft(Sequence& sequence, int32_t length, StepRow& row, StepPlan& plan) {
  row.num_draft = length;
  if (row.sampled_by.has_value()) {
    sequence.late_draft =
        LateDraft{.step = plan.id, .row = static_cast<int32_t>(plan.rows.size()), .tokens = {}};
    return;
  }
  plan.tokens.insert(plan.tokens.end(), sequence.draft.begin(), sequence.draft.begin() + length);
  CountDraft(length);
}

void Scheduler::CountDraft(int32_t length) {
  counters_.drafts += length > 0 ? 1 : 0;
  counters_.draft_tokens += length;
}

// Gives the row that waits for its draft what the drafter knows by now.
void Scheduler::SetLateDraft(Sequence& sequence) {
  LateDraft late = *std::exchange(sequence.late_draft, std::nullopt);
  PlannedStep& step = in_flight_[late.step % kMaxStepsInFlight];
  PlannedRow& row = step.rows[late.row];
  const int32_t length =
      sequence.ended ? 0 : std::min(row.num_draft, static_cast<int32_t>(sequence.draft.size()));
  late.tokens.assign(sequence.draft.begin(), sequence.draft.begin() + length);
  const int32_t missing = row.num_draft - length;
  step.work.decode_rows -= missing;
  step.work.decode_context -= int64_t{missing} * row.end;
  row.num_draft = length;
  row.end -= missing;
  sequence.tokens_in_flight -= missing;
  sequence.drafts_in_flight -= missing;
  if (sequence.slot) sequence.computed -= missing;
  CountDraft(length);
  late_drafts_.push_back(std::move(late));
}

// Counts what of a draft the answer has.
void Scheduler::CountAccepted(int32_t accepted) {
  for (int32_t i = 0; i < accepted; ++i) ++counters_.accepted_tokens[i];
  counters_.decode_tokens += accepted;
}

// Compares what was guessed with the tokens from `first` on, which have come since, and has the
// drafter guess again.
void Scheduler::GuessOn(Sequence& sequence, size_t first) {
  if (sequence.drafter == nullptr) return;
  const absl::Span<const Token> came = absl::MakeConstSpan(sequence.tokens).subspan(first);
  sequence.record.Observe(sequence.draft, came);
  sequence.drafter->Append(came);
  sequence.draft = sequence.drafter->Draft(options_.num_draft_tokens);
}

}  // namespace millrace
