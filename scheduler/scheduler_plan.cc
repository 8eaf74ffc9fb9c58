// The planning half of Scheduler.
#include <algorithm>
#include <chrono>
#include <utility>

#include "scheduler/scheduler.h"
#include "scheduler/scheduler_draft.h"

namespace millrace {
namespace {

// How long before the end of a step the next one is planned: the executor has to prepare it, and
// steps end earlier than foreseen.
constexpr Duration kLeastAhead = std::chrono::milliseconds(10);
constexpr int kShareAhead = 4;  // of the step's time

}  // namespace

SteadyTime Scheduler::PlanFrom() const {
  if (num_in_flight_ != 1) return SteadyTime::min();
  const PlannedStep& step = in_flight_[last_step_ % kMaxStepsInFlight];
  const Duration time = budget_.Predict(step.work);
  return BeginOf(step) + time - std::max(time / kShareAhead, kLeastAhead);
}

std::optional<StepPlan> Scheduler::Plan(SteadyTime now) {
  if (num_in_flight_ == kMaxStepsInFlight) return std::nullopt;
  const StepId id = last_step_ + 1;
  Draft draft{.step = in_flight_[id % kMaxStepsInFlight],
              .budget = options_.limits.max_num_batched_tokens};
  draft.plan.id = id;
  draft.plan.rows.reserve(running_.size());
  draft.step.id = id;
  draft.step.rows.clear();
  draft.step.work = {};
  draft.step.planned = now;

  UnparkReady();
  RankTenants();
  AdmitWithinShares(draft);
  BeginBudget(draft);
  PlanRunning(draft);
  waiting_.Settle();
  Admit(draft);

  if (draft.plan.rows.empty()) return std::nullopt;
  last_step_ = id;
  ++num_in_flight_;
  return std::move(draft.plan);
}

int32_t Scheduler::BlocksFor(int32_t positions) const {
  return (positions + options_.limits.block_size - 1) / options_.limits.block_size;
}

// The blocks that a sequence still lacks for all the tokens it has and one block of new ones: what
// it will want before long, and never more than it can ever use.
int32_t Scheduler::BlocksToGrow(const Sequence& sequence) const {
  const int32_t size = static_cast<int32_t>(sequence.tokens.size()) + options_.limits.block_size;
  return std::max(
      BlocksFor(std::min(size, sequence.max_inputs)) - static_cast<int32_t>(sequence.blocks.size()),
      0);
}

// Of prompts that wait it counts those that could begin, cached parts too.
void Scheduler::BeginBudget(Draft& draft) {
  int32_t rows = 0;
  int64_t context = 0;
  int32_t prompt_tokens = 0;
  for (const Sequence* sequence : running_) {
    const int32_t ready = sequence->num_ready();
    if (sequence->decoding()) {
      rows += ready;
      context += ready * (sequence->computed + 1);
    } else {
      prompt_tokens += ready;
    }
  }
  draft.decodes_ahead = rows;
  const int32_t most = draft.budget - rows;
  size_t slots = free_slots_.size();
  waiting_.ForEach([&](const Sequence& sequence) {
    if (slots == 0 || prompt_tokens >= most) return false;
    --slots;
    prompt_tokens += static_cast<int32_t>(sequence.tokens.size());
    return true;
  });
  budget_.Begin(rows, context, std::min(prompt_tokens, most));
}

// By rank, so that whoever lacks a block takes it from those that have no row in this step yet. The
// first can take from all others: it advances in every step.
void Scheduler::PlanRunning(Draft& draft) {
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    int32_t num_tokens = sequence.num_ready();
    if (sequence.decoding()) {
      draft.decodes_ahead -= num_tokens;
    } else {
      num_tokens = budget_.Allow(std::min(num_tokens, draft.budget - draft.decodes_ahead),
                                 sequence.computed);
    }
    num_tokens = FreeBlocksFor(sequence, num_tokens, draft);
    if (sequence.blocks_told == 0 && !HistoryFits(sequence, draft.plan)) num_tokens = 0;
    if (num_tokens > 0) AddRow(sequence, num_tokens, draft);
    draft.blocks_promised += BlocksToGrow(sequence);
  }
}

// How many of the tokens there are blocks for, once sequences that rank behind have been preempted
// for them. The last in rank preempts none, itself neither: it sits out, and keeps its blocks
// until one that ranks before it wants them.
int32_t Scheduler::FreeBlocksFor(const Sequence& sequence, int32_t num_tokens, Draft& draft) {
  const int32_t held = static_cast<int32_t>(sequence.blocks.size());
  const int32_t missing = BlocksFor(sequence.computed + num_tokens) - held;
  while (pool_.num_available() < missing && running_.back() != &sequence) {
    Preempt(*running_.back(), draft);
  }
  if (pool_.num_available() >= missing) return num_tokens;
  return (held + pool_.num_available()) * options_.limits.block_size - sequence.computed;
}

// It keeps its tokens, those in flight too, and its rank: it is computed anew when it is admitted
// again, as far as the prefix cache has not kept it.
void Scheduler::Preempt(Sequence& sequence, Draft& draft) {
  if (sequence.decoding()) draft.decodes_ahead -= sequence.num_ready();
  LeaveSlot(sequence);
  waiting_.Push(sequence);
  ++counters_.preemptions;
}

// One of the sequence's group whose prompt's positions but the last are computed by a step before
// this one. The last is computed by each, for its logits.
const Sequence* Scheduler::FindDonor(const Sequence& sequence) const {
  if (sequence.group == nullptr || sequence.scoring()) return nullptr;
  for (const Sequence* other : sequence.group->running) {
    if (other->prompt_step != 0 && other->prompt_step <= last_step_) return other;
  }
  return nullptr;
}

void Scheduler::Park(Sequence& sequence) {
  waiting_.Erase(sequence);
  sequence.parked = true;
  sequence.group->parked.push_back(&sequence);
}

void Scheduler::Unpark(PromptGroup& group) {
  for (Sequence* sequence : group.parked) {
    sequence->parked = false;
    sequence->blocks_missing = 0;  // it will want fewer
    waiting_.Push(*sequence);
  }
  group.parked.clear();
}

void Scheduler::UnparkReady() {
  for (const uint64_t id : ready_groups_) {
    if (const auto it = groups_.find(id); it != groups_.end()) Unpark(*it->second);
  }
  ready_groups_.clear();
}

// Returns whether another one of the sequence's group computes their prompt first.
bool Scheduler::WaitsForGroup(const Sequence& sequence, const Sequence* donor) const {
  return donor == nullptr && sequence.group != nullptr && !sequence.group->running.empty() &&
         !sequence.scoring();
}

// In the order of the queue; none overtakes a first that does not fit.
void Scheduler::Admit(Draft& draft) {
  while (!waiting_.empty() && !free_slots_.empty() && draft.budget > 0) {
    Sequence& sequence = waiting_.first();
    if (!sequence.can_start()) return;
    const Sequence* const donor = FindDonor(sequence);
    if (WaitsForGroup(sequence, donor)) {
      Park(sequence);
      continue;
    }
    const bool whole = options_.limits.whole_sequences();
    if (whole && sequence.num_ready() > draft.budget) return;
    if (!FitsBlocks(sequence, donor, draft.blocks_promised)) return;
    if (!HistoryFits(sequence, draft.plan)) return;
    const int32_t start = static_cast<int32_t>(prefix_.size()) * options_.limits.block_size +
                          (partial_ ? partial_positions_ : 0);
    const int32_t missing = static_cast<int32_t>(sequence.tokens.size()) - start;
    if (budget_.Allow(std::min(missing, draft.budget), start) == 0) return;
    TakeSlot(sequence, /*shared=*/donor != nullptr, draft.plan);
    const int32_t wanted = std::min(sequence.num_ready(), draft.budget);
    AddRow(sequence, std::max(budget_.Allow(wanted, sequence.computed), 1), draft);
    draft.blocks_promised += BlocksToGrow(sequence);
    waiting_.Settle();
  }
}

// Sequences whose tokens so far the executor must be told start in several steps if they are long:
// a plan's memory for these is bounded. One always fits.
bool Scheduler::HistoryFits(const Sequence& sequence, const StepPlan& plan) const {
  return !sequence.sampling->penalizes() || plan.history.size() + sequence.tokens.size() <=
                                                static_cast<size_t>(options_.limits.max_model_len);
}

// Returns whether all of the sequence's tokens and a block of new ones fit beside the promised.
// Leaves in prefix_ and partial_ what the cache or the donor has of it. While the first in the
// queue is blocked, it is looked up again only when more blocks are available or the next of its
// prefix has been published.
bool Scheduler::FitsBlocks(Sequence& sequence, const Sequence* donor, int32_t promised) {
  const int32_t available = pool_.num_available() - promised;
  const std::vector<BlockHash>& hashes = sequence.hashes.blocks;
  const size_t found = sequence.blocks_found;
  const bool more_cached = found < MostCached(sequence) && pool_.Find(hashes[found]).has_value();
  if (sequence.blocks_missing > available && !more_cached) return false;

  FindPrefix(sequence);
  if (donor != nullptr) ShareBlocks(*donor);
  const auto held = std::count_if(prefix_.begin(), prefix_.end(),
                                  [this](BlockId block) { return pool_.num_holders(block) > 0; });
  sequence.blocks_found = static_cast<int32_t>(prefix_.size());
  sequence.blocks_missing = BlocksToGrow(sequence) - static_cast<int32_t>(held);
  return sequence.blocks_missing <= available;
}

// The leading blocks that may come from the cache. The last position is always computed, for its
// logits; so are those that are still to be scored.
size_t Scheduler::MostCached(const Sequence& sequence) const {
  if (!options_.prefix_caching) return 0;
  const size_t positions = sequence.scoring() ? sequence.scored : sequence.tokens.size() - 1;
  return std::min(positions / options_.limits.block_size, sequence.hashes.blocks.size());
}

void Scheduler::FindPrefix(const Sequence& sequence) {
  prefix_.clear();
  partial_.reset();
  partial_positions_ = 0;
  const size_t most = MostCached(sequence);
  while (prefix_.size() < most) {
    const std::optional<BlockId> block = pool_.Find(sequence.hashes.blocks[prefix_.size()]);
    if (!block) return;
    prefix_.push_back(*block);
  }
}

// A donor has all positions of the prompt but the last; the cache may have more only for a sequence
// that was preempted.
void Scheduler::ShareBlocks(const Sequence& donor) {
  const int32_t block_size = options_.limits.block_size;
  const int32_t positions = donor.prompt_size - 1;
  if (static_cast<int32_t>(prefix_.size()) * block_size >= positions) return;
  const auto full = donor.blocks.begin() + positions / block_size;
  prefix_.assign(donor.blocks.begin(), full);
  partial_positions_ = positions % block_size;
  if (partial_positions_ > 0) partial_ = *full;
}

// `shared`: with the blocks of another one of its group.
void Scheduler::TakeSlot(Sequence& sequence, bool shared, StepPlan& plan) {
  waiting_.Erase(sequence);
  TenantAccount& tenant = *sequence.tenant;
  if (tenant.running++ == 0) {
    tenant.rank = tenant.served;
    tenant.over_share = false;
  }
  running_.insert(std::upper_bound(running_.begin(), running_.end(), &sequence, RunsBefore()),
                  &sequence);
  sequence.slot = free_slots_.back();
  free_slots_.pop_back();

  for (const BlockId block : prefix_) {
    if (pool_.num_holders(block) == 0) CountBlock(tenant, block);
    pool_.Hold(block);
  }
  sequence.blocks.assign(prefix_.begin(), prefix_.end());
  sequence.blocks_committed = static_cast<int32_t>(prefix_.size());
  sequence.computed = sequence.blocks_committed * options_.limits.block_size + partial_positions_;
  if (partial_) {
    AddBlock(sequence);
    plan.copies.push_back({.src = *partial_, .dst = sequence.blocks.back()});
  }
  if (sequence.group != nullptr) sequence.group->running.push_back(&sequence);
  sequence.prefill_end = static_cast<int32_t>(sequence.tokens.size());
  sequence.blocks_missing = 0;
  if (!sequence.cached_tokens) {
    sequence.cached_tokens = shared ? 0 : sequence.computed;
    const bool looked_up = options_.prefix_caching && !sequence.scoring() && !shared;
    counters_.prefix_queries += looked_up ? sequence.prompt_size : 0;
    counters_.prefix_hits += *sequence.cached_tokens;
  }

  sequence.charged = std::max(sequence.charged, sequence.computed);
}

// A block counts for the tenant that was the first to hold it, until none does.
void Scheduler::CountBlock(TenantAccount& tenant, BlockId block) {
  payers_[block] = &tenant;
  ++tenant.blocks;
}

void Scheduler::AddBlock(Sequence& sequence) {
  sequence.blocks.push_back(pool_.Allocate());
  CountBlock(*sequence.tenant, sequence.blocks.back());
}

void Scheduler::AddStart(const Sequence& sequence, StepPlan& plan) {
  SlotStart& start =
      plan.starts.emplace_back(SlotStart{.slot = *sequence.slot, .sampling = sequence.sampling});
  if (!sequence.sampling->penalizes()) return;
  start.history.begin = static_cast<int32_t>(plan.history.size());
  plan.history.insert(plan.history.end(), sequence.tokens.begin(), sequence.tokens.end());
  start.history.end = static_cast<int32_t>(plan.history.size());
  start.prompt_tokens = sequence.prompt_size;
}

void Scheduler::AddRow(Sequence& sequence, int32_t num_tokens, Draft& draft) {
  StepPlan& plan = draft.plan;
  if (sequence.blocks_told == 0) AddStart(sequence, plan);
  StepRow row{.slot = *sequence.slot, .start = sequence.computed, .num_tokens = num_tokens};
  row.second_type = sequence.second_type;

  row.tokens.begin = static_cast<int32_t>(plan.tokens.size());
  if (sequence.computed < static_cast<int32_t>(sequence.tokens.size())) {
    const auto first = sequence.tokens.begin() + sequence.computed;
    plan.tokens.insert(plan.tokens.end(), first, first + num_tokens);
  } else {
    row.sampled_by = sequence.sampled_by;
  }
  row.tokens.end = static_cast<int32_t>(plan.tokens.size());

  const int32_t end = sequence.computed + num_tokens;
  const size_t blocks_wanted = BlocksFor(end);
  while (sequence.blocks.size() < blocks_wanted) AddBlock(sequence);
  row.blocks.begin = static_cast<int32_t>(plan.blocks.size());
  plan.blocks.insert(plan.blocks.end(), sequence.blocks.begin() + sequence.blocks_told,
                     sequence.blocks.end());
  row.blocks.end = static_cast<int32_t>(plan.blocks.size());
  sequence.blocks_told = static_cast<int32_t>(sequence.blocks.size());

  PlannedRow planned{.sequence = &sequence, .slot = row.slot, .end = end};
  AddLogits(sequence, num_tokens, row, planned, plan);
  plan.rows.push_back(row);
  draft.step.rows.push_back(planned);

  StepWork& work = draft.step.work;
  if (sequence.decoding()) {
    counters_.decode_tokens += num_tokens;
    work.decode_rows += num_tokens;
    work.decode_context += end;
  } else {
    counters_.prefill_tokens += num_tokens;
    work.AddPrompt(num_tokens, sequence.computed);
    budget_.Take(num_tokens, sequence.computed);
  }
  if (!sequence.first_scheduled) sequence.first_scheduled = draft.step.planned;
  waiting_.Charge(sequence, end);
  draft.budget -= num_tokens;
  ++sequence.rows_in_flight;
  if (planned.samples) {
    ++sequence.tokens_in_flight;
    sequence.sampled_by = plan.id;
  }
  sequence.computed = end;
  if (sequence.group != nullptr && sequence.prompt_step == 0 && end >= sequence.prompt_size - 1) {
    sequence.prompt_step = plan.id;
    ready_groups_.push_back(sequence.group->id);
  }
}

void Scheduler::AddLogits(Sequence& sequence, int32_t num_tokens, StepRow& row, PlannedRow& planned,
                          StepPlan& plan) {
  row.logits.begin = static_cast<int32_t>(plan.logits.size());
  const int32_t last_scored = std::min(planned.end, sequence.prompt_size - 1);
  for (int32_t i = std::max(sequence.computed, sequence.scored); i < last_scored; ++i) {
    plan.logits.push_back({.offset = i - sequence.computed, .target = sequence.tokens[i + 1]});
  }
  planned.num_scored = static_cast<int32_t>(plan.logits.size()) - row.logits.begin;

  const int32_t size = static_cast<int32_t>(sequence.tokens.size()) + sequence.tokens_in_flight;
  planned.samples = planned.end == size && size < sequence.max_size;
  if (planned.samples) {
    plan.logits.push_back({.offset = num_tokens - 1,
                           .target = std::nullopt,
                           .mask = std::exchange(sequence.mask, nullptr)});
    if (sequence.masked && plan.logits.back().mask == nullptr) {
      plan.logits.back().late_mask = sequence.late_masks.emplace_back(std::make_shared<LateMask>());
    }
  }
  row.logits.end = static_cast<int32_t>(plan.logits.size());
}

}  // namespace millrace
