// The planning half of Scheduler.
#include <algorithm>
#include <chrono>
#include <utility>

#include "scheduler/scheduler.h"
#include "scheduler/scheduler_draft.h"

namespace millrace {
namespace {

// How long before the end of a step the next one is planned: the executor has to prepare it, and
// steps end earlier than estimated.
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
  draft.reserved.resize(pools_.size());
  draft.plan.rows.reserve(running_.size());
  draft.step.id = id;
  draft.step.rows.clear();
  draft.step.copies.clear();
  draft.step.work = {};
  draft.step.planned = now;

  ReleaseBehindWindows();
  UnparkReady();
  UnparkPrefixes();
  RankTenants();
  AdmitWithinShares(draft);
  FindStatesToCopy(draft);  // those too that a prompt has just begun to wait for
  BeginBudget(draft);
  PlanRunning(draft);
  waiting_.Settle();
  Admit(draft);

  if (draft.plan.rows.empty()) return std::nullopt;
  CopyStates(draft);
  for (const StateMove& move : draft.plan.moves) {
    draft.step.work.moved_bytes += options_.limits.state.MoveBytes(move.group);
  }
  last_step_ = id;
  ++num_in_flight_;
  return std::move(draft.plan);
}

// The pool's blocks that a sequence still lacks for all the tokens it has and one block of new
// ones: what it will want before long, and never more than it can ever use.
int32_t Scheduler::BlocksToGrow(const Sequence& sequence, int pool) const {
  const int32_t size = static_cast<int32_t>(sequence.tokens.size()) + options_.limits.block_size();
  const int32_t positions = std::min(size, sequence.max_inputs);
  const BlockTable& table = sequence.tables[pool];
  return std::max(std::min(BlocksFor(positions) - sequence.tables.length(),
                           pools_.BlocksAtOnce(pool, positions) - table.num_held()),
                  0);
}

// The blocks of each pool that a sequence which decodes needs for its next row.
int32_t Scheduler::BlocksToDecode(const Sequence& sequence) const {
  // Those of a draft that was wrong are there already.
  return std::max(
      BlocksFor(sequence.computed + InputsToDecode(sequence)) - sequence.tables.length(), 0);
}

// Adds the blocks that the sequence will soon need to `reserved`, or with a `sign` of -1 subtracts
// them.
void Scheduler::Reserve(const Sequence& sequence, int32_t sign, BlockCounts& reserved) const {
  for (int i = 0; i < pools_.size(); ++i) reserved[i] += sign * BlocksToGrow(sequence, i);
}

// Of prompts that wait it counts those that could begin, cached parts too.
void Scheduler::BeginBudget(Draft& draft) {
  int32_t rows = 0;
  int32_t blocks = 0;
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
  ChooseDrafts(draft, rows, context);
  for (const Sequence* sequence : running_) {
    if (!sequence->decoding()) continue;
    blocks += BlocksToDecode(*sequence);
    rows += sequence->planned_draft;
    context += int64_t{sequence->planned_draft} * (sequence->computed + 1);
  }
  draft.decodes_ahead = rows;
  draft.blocks_ahead = blocks;
  const int32_t most = draft.budget - rows;
  // Those that wait for a prefix leave slots free for when they return.
  size_t slots = free_slots_.size() - std::min(free_slots_.size(), prefix_waiters_.size());
  waiting_.ForEach([&](const Sequence& sequence) {
    if (slots == 0 || prompt_tokens >= most) return false;
    --slots;
    prompt_tokens += static_cast<int32_t>(sequence.tokens.size());
    return true;
  });
  budget_.Begin(rows, context, std::min(prompt_tokens, most), BytesToCopy(draft));
}

// By rank, so that whoever lacks a block takes it from those that have no row in this step yet. The
// first can take from all others: it advances in every step.
void Scheduler::PlanRunning(Draft& draft) {
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    int32_t num_tokens = sequence.num_ready();
    if (sequence.decoding()) {
      num_tokens = InputsToDecode(sequence);
      draft.decodes_ahead -= num_tokens;
      draft.blocks_ahead -= BlocksToDecode(sequence);
    } else {
      num_tokens = CutAtCheckpoint(sequence, num_tokens);
      num_tokens = budget_.Allow(std::min(num_tokens, draft.budget - draft.decodes_ahead),
                                 sequence.computed);
    }
    num_tokens = FreeBlocksFor(i, num_tokens, draft);
    if (sequence.blocks_sent == 0 && !HistoryFits(sequence, draft.plan)) num_tokens = 0;
    if (num_tokens > 0) AddRow(sequence, num_tokens, draft);
    Reserve(sequence, 1, draft.reserved);
  }
}

// Blocks behind a window go once they have been published: others may begin with them. Before any
// row is planned, since those of this step read what lies in the windows of their first positions.
void Scheduler::ReleaseBehindWindows() {
  for (Sequence* sequence : running_) {
    pools_.ReleaseBehindWindows(*sequence, options_.prefix_caching ? sequence->blocks_committed
                                                                   : sequence->tables.length());
  }
}

// How many of the tokens of the running sequence there are blocks for, once others have given up
// theirs: first what lies behind windows and is not yet published, then all of sequences that rank
// behind. Those have no row in this step yet. The last in rank preempts none, itself neither: it
// sits out, and keeps its blocks until one that ranks before it wants them.
//
// Nobody is preempted for a whole chunk where it is blocks with windows that are short, which come
// back soon: the chunk is cut to what those have beside what sequences that decode need in this
// step, or to a block. Nor is anybody preempted for guesses: a draft is cut to the blocks there
// are.
int32_t Scheduler::FreeBlocksFor(size_t running, int32_t num_tokens, Draft& draft) {
  const Sequence& sequence = *running_[running];
  const int32_t held = sequence.tables.length();
  int32_t missing = BlocksFor(sequence.computed + num_tokens) - held;
  for (size_t i = running; i < running_.size() && pools_.available_with_window() < missing; ++i) {
    pools_.ReleaseBehindWindows(*running_[i], running_[i]->tables.length());
  }
  const int32_t ahead = sequence.decoding() ? 0 : draft.blocks_ahead;
  missing = std::min(missing, std::max(pools_.available_with_window() - ahead, 1));
  const int32_t guessed = sequence.decoding() ? sequence.planned_draft : 0;
  const int32_t needed =
      std::min(missing, BlocksFor(sequence.computed + num_tokens - guessed) - held);
  while (pools_.available() < needed && running_.back() != &sequence) {
    Preempt(*running_.back(), draft);
  }
  const int32_t blocks = held + std::min(missing, pools_.available());
  return std::min(num_tokens, blocks * options_.limits.block_size() - sequence.computed);
}

// It keeps its tokens, those in flight too, and its rank: it is computed anew when it is admitted
// again, as far as the prefix cache has not kept it.
void Scheduler::Preempt(Sequence& sequence, Draft& draft) {
  if (sequence.decoding()) {
    draft.decodes_ahead -= InputsToDecode(sequence);
    draft.blocks_ahead -= BlocksToDecode(sequence);
  }
  std::erase_if(draft.to_copy, [&](const StateToCopy& copy) { return copy.sequence == &sequence; });
  LeaveSlot(sequence);
  waiting_.Push(sequence);
  ++counters_.preemptions;
}

// One of the sequence's group whose prompt's positions but the last are computed by a step before
// this one, and that has not given back what the last position reads. The last is computed by each,
// for its logits. With state at slots a checkpoint is shared instead, by the prefix cache.
const Sequence* Scheduler::FindDonor(const Sequence& sequence) const {
  if (sequence.group == nullptr || sequence.scoring() || has_slots_) return nullptr;
  for (const Sequence* other : sequence.group->running) {
    if (HasPrompt(*other) && pools_.CanShare(*other, other->prompt_size - 1)) return other;
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
    sequence->blocks_missing.clear();  // it will want fewer
    waiting_.Push(*sequence);
  }
  group.parked.clear();
}

void Scheduler::UnparkReady() {
  std::erase_if(ready_groups_, [this](const auto& ready) {
    const auto& [id, step] = ready;
    if (!IsShared(step)) return false;
    if (const auto it = groups_.find(id); it != groups_.end()) Unpark(*it->second);
    return true;
  });
}

// Returns whether another one of the sequence's group computes their prompt first.
bool Scheduler::WaitsForGroup(const Sequence& sequence, const Sequence* donor) const {
  if (donor != nullptr || sequence.group == nullptr || sequence.scoring() || !shares_prefixes_) {
    return false;
  }
  if (has_slots_) {
    const int32_t checkpoint = PromptCheckpoint(sequence);
    if (checkpoint == 0 || HasCheckpoint(sequence, checkpoint)) return false;
  }
  const std::vector<Sequence*>& running = sequence.group->running;
  return std::count_if(running.begin(), running.end(), [this](const Sequence* other) {
           return !HasPrompt(*other);
         }) > sequence.group->refused_checkpoints;
}

// In the order of the queue; none overtakes a first that does not fit.
void Scheduler::Admit(Draft& draft) {
  while (!waiting_.empty() && free_slots_.size() > prefix_waiters_.size() && draft.budget > 0) {
    Sequence& sequence = waiting_.first();
    if (!sequence.can_start()) return;
    const Sequence* const donor = FindDonor(sequence);
    if (WaitsForAnother(sequence)) continue;
    const bool whole = options_.limits.whole_sequences();
    if (whole && sequence.num_ready() > draft.budget) return;
    const std::optional<CachedPrefix> prefix = FitBlocks(sequence, donor, draft.reserved);
    if (!prefix.has_value() || !HistoryFits(sequence, draft.plan)) return;
    const int32_t start =
        prefix->tables.length() * options_.limits.block_size() + prefix->partial_positions;
    const int32_t missing = static_cast<int32_t>(sequence.tokens.size()) - start;
    if (budget_.Allow(std::min(missing, draft.budget), start) == 0) return;
    TakeSlot(sequence, *prefix, /*shared=*/donor != nullptr, draft.plan);
    const int32_t wanted = CutAtCheckpoint(sequence, FitWindows(sequence, draft));
    AddRow(sequence, std::max(budget_.Allow(wanted, sequence.computed), 1), draft);
    Reserve(sequence, 1, draft.reserved);
    waiting_.Settle();
  }
}

// Returns how many tokens a sequence that was just admitted can compute: FitBlocks foresaw the
// blocks that it needs at once, not those of a whole chunk, in pools with windows.
int32_t Scheduler::FitWindows(const Sequence& sequence, const Draft& draft) const {
  int32_t tokens = std::min(sequence.num_ready(), draft.budget);
  for (int i = 0; i < pools_.size(); ++i) {
    if (!pools_.has_window(i)) continue;
    const int32_t blocks =
        sequence.tables.length() + std::max(pools_.available(i) - draft.reserved[i], 0);
    tokens = std::min(tokens, blocks * options_.limits.block_size() - sequence.computed);
  }
  return tokens;
}

// Sequences whose tokens so far the executor must be told start in several steps if they are long:
// a plan's memory for these is bounded. One always fits.
bool Scheduler::HistoryFits(const Sequence& sequence, const StepPlan& plan) const {
  return !sequence.sampling->penalizes() || plan.history.size() + sequence.tokens.size() <=
                                                static_cast<size_t>(options_.limits.max_model_len);
}

bool Scheduler::LacksBlocks(const Sequence& sequence, const BlockCounts& reserved) const {
  if (sequence.blocks_missing.empty()) return false;  // it was not looked at yet
  for (int i = 0; i < pools_.size(); ++i) {
    if (Lacks(sequence, i, reserved)) return true;
  }
  return false;
}

// Returns what the cache or the donor has of the sequence if all of its tokens and a block of new
// ones fit beside the reserved blocks, else nothing. While the first in the queue is blocked, it is
// looked up again only when more blocks are available or the next of its prefix has been published.
std::optional<CachedPrefix> Scheduler::FitBlocks(Sequence& sequence, const Sequence* donor,
                                                 const BlockCounts& reserved) {
  const size_t found = sequence.blocks_found;
  const bool more_cached = found < MostCached(sequence) && pools_.HasBlock(sequence, found);
  if (!more_cached && LacksBlocks(sequence, reserved)) return std::nullopt;

  CachedPrefix prefix = FindPrefix(sequence, donor);
  sequence.blocks_found = std::max(prefix.matched, prefix.tables.length());
  sequence.blocks_missing.resize(pools_.size());
  for (int i = 0; i < pools_.size(); ++i) {
    sequence.blocks_missing[i] = BlocksToGrow(sequence, i) - pools_.CountHeld(i, prefix);
  }
  if (LacksBlocks(sequence, reserved)) return std::nullopt;
  return prefix;
}

// The leading blocks that may come from the cache. The last position is always computed, for its
// logits; so are those that are still to be scored.
size_t Scheduler::MostCached(const Sequence& sequence) const {
  if (!options_.prefix_caching || !shares_prefixes_) return 0;
  const size_t positions = sequence.scoring() ? sequence.scored : sequence.tokens.size() - 1;
  return std::min(positions / options_.limits.block_size(), sequence.hashes.blocks.size());
}

// A donor has all positions of the prompt but the last; the cache may have more only for a sequence
// that was preempted.
CachedPrefix Scheduler::FindPrefix(const Sequence& sequence, const Sequence* donor) const {
  CachedPrefix prefix = pools_.FindPrefix(sequence, MostCached(sequence));
  if (has_slots_) return CutToCheckpoint(sequence, std::move(prefix));
  if (donor == nullptr) return prefix;
  const int32_t positions = donor->prompt_size - 1;
  if (prefix.tables.length() * options_.limits.block_size() >= positions) return prefix;
  return pools_.Share(*donor, positions);
}

// Returns whether the sequence begins from the state of another one of its group: nothing of its
// prompt is looked up, or counts as cached, as where it shares that one's blocks.
bool Scheduler::BeginsFromGroup(const Sequence& sequence) const {
  if (!has_slots_ || sequence.group == nullptr) return false;
  const std::vector<Sequence*>& running = sequence.group->running;
  return std::any_of(running.begin(), running.end(),
                     [this](const Sequence* other) { return HasPrompt(*other); });
}

// `shared`: with the blocks of another one of its group.
void Scheduler::TakeSlot(Sequence& sequence, const CachedPrefix& prefix, bool shared,
                         StepPlan& plan) {
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

  const bool of_group = shared || BeginsFromGroup(sequence);
  pools_.Take(prefix, sequence, plan.moves);
  if (has_slots_) BeginAt(prefix, sequence);
  sequence.blocks_committed = prefix.tables.length();
  sequence.computed =
      sequence.blocks_committed * options_.limits.block_size() + prefix.partial_positions;
  if (sequence.group != nullptr) sequence.group->running.push_back(&sequence);
  sequence.prefill_end = static_cast<int32_t>(sequence.tokens.size());
  sequence.prefix_waits = 0;
  sequence.blocks_missing.clear();
  if (!sequence.cached_tokens) {
    sequence.cached_tokens = of_group ? 0 : sequence.computed;
    const bool looked_up = options_.prefix_caching && !sequence.scoring() && !of_group;
    counters_.prefix_queries += looked_up ? sequence.prompt_size : 0;
    counters_.prefix_hits += *sequence.cached_tokens;
  }

  sequence.charged = std::max(sequence.charged, sequence.computed);
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
  if (sequence.blocks_sent == 0) AddStart(sequence, plan);
  if (sequence.begins_from.has_value()) RestoreState(sequence, draft);
  StepRow row{.slot = *sequence.slot, .start = sequence.computed, .num_tokens = num_tokens};
  row.second_type = sequence.second_type;

  row.tokens.begin = static_cast<int32_t>(plan.tokens.size());
  const int32_t length = std::min(num_tokens - 1, sequence.decoding() ? sequence.planned_draft : 0);
  if (sequence.computed < static_cast<int32_t>(sequence.tokens.size())) {
    const auto first = sequence.tokens.begin() + sequence.computed;
    plan.tokens.insert(plan.tokens.end(), first, first + num_tokens - length);
  } else {
    row.sampled_by = sequence.sampled_by;
  }
  if (length > 0) AddDraft(sequence, length, row, plan);
  row.tokens.end = static_cast<int32_t>(plan.tokens.size());

  const int32_t end = sequence.computed + num_tokens;
  while (sequence.tables.length() < BlocksFor(end)) pools_.Extend(sequence);
  row.blocks.begin = static_cast<int32_t>(plan.blocks.size());
  pools_.AddBlocks(sequence, sequence.blocks_sent, plan.blocks);
  row.blocks.end = static_cast<int32_t>(plan.blocks.size());
  sequence.blocks_sent = sequence.tables.length();

  PlannedRow planned{
      .sequence = &sequence, .slot = row.slot, .end = end, .num_draft = row.num_draft};
  AddLogits(sequence, num_tokens, row, planned, plan);
  plan.rows.push_back(row);
  draft.step.rows.push_back(planned);

  StepWork& work = draft.step.work;
  if (sequence.decoding()) {
    counters_.decode_tokens += num_tokens - length;  // CountAccepted counts the draft's
    work.decode_rows += num_tokens;
    work.decode_context += int64_t{num_tokens} * end;
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
    sequence.tokens_in_flight += 1 + length;
    sequence.drafts_in_flight += length;
    sequence.sampled_by = plan.id;
  }
  sequence.computed = end;
  // With state at slots others begin from its copy, which the row behind that makes.
  const int32_t shared = sequence.prompt_size - (has_slots_ ? 0 : 1);
  if (sequence.group != nullptr && sequence.prompt_step == 0 && end >= shared) {
    sequence.prompt_step = plan.id;
    ready_groups_.emplace_back(sequence.group->id, plan.id);
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
  planned.samples = planned.end - row.num_draft == size && size < sequence.max_size;
  if (planned.samples) {
    for (int32_t i = num_tokens - 1 - row.num_draft; i < num_tokens - 1; ++i) {
      plan.logits.push_back({.offset = i, .target = std::nullopt});
    }
    plan.logits.push_back({.offset = num_tokens - 1,
                           .target = std::nullopt,
                           .mask = std::exchange(sequence.mask, nullptr)});
    if (sequence.masked && plan.logits.back().mask == nullptr) {
      plan.logits.back().late_mask = true;
      sequence.late_masks.push_back(
          {.step = plan.id, .logits = static_cast<int32_t>(plan.logits.size()) - 1});
    }
  }
  row.logits.end = static_cast<int32_t>(plan.logits.size());
}

}  // namespace millrace
