// The scheduler's own records of sequences. Not for others.
#ifndef MILLRACE_SCHEDULER_SEQUENCE_H_
#define MILLRACE_SCHEDULER_SEQUENCE_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "scheduler/block_tables.h"
#include "scheduler/checkpoint_pool.h"
#include "scheduler/draft_record.h"
#include "scheduler/sequence_request.h"

namespace millrace {

struct Sequence;
struct TenantAccount;

// The live sequences of one prompt (a request's n choices). The first to be admitted prefills the
// prompt. Until it has, the others are parked when their turn comes, so that they block no other
// request. Then they return to the queue, and start from the running sequence's blocks: they share
// all full blocks and copy the last, partial one. If it has given back blocks behind a window that
// they would read, the next of them computes what the prefix cache lacks.
struct PromptGroup {
  uint64_t id;
  std::vector<Sequence*> members;
  std::vector<Sequence*> running;
  std::vector<Sequence*> parked;  // neither running nor in the queue
  // How often no place was to be had for the state that members would begin from. The next members
  // do not wait for one another, in growing numbers, since a later copy may find a place.
  int32_t refused_checkpoints = 0;
};

// Waiting (no slot), running (a slot), or ended with rows in flight. Positions count tokens from
// the sequence's beginning; "planned" includes what submitted steps will have done.
struct Sequence {
  // Set once.
  SequenceId id;
  int32_t priority;
  uint64_t order;  // of Add
  int32_t prompt_size;
  int32_t max_size;    // tokens, with the generated ones
  int32_t max_inputs;  // positions ever computed: the last token of all is never an input
  std::vector<Token> stop_token_ids;  // sorted
  std::shared_ptr<const SamplingParams> sampling;
  PromptGroup* group;  // null: none
  TenantAccount* tenant;
  bool masked = false;  // tokens are sampled under masks
  // From so many tokens on, rows of a masked sequence stand in plans before their masks are known.
  // Unset: never.
  std::optional<int32_t> masks_late_from;
  int32_t next_awaited = 32;  // masks that are awaited once one was too late
  SteadyTime arrival;
  std::optional<int32_t> second_type;  // StepRow's

  // Committed.
  std::vector<Token> tokens;  // the prompt's, then the generated ones
  int32_t scored;      // positions whose successor is scored, or need not be; to prompt_size - 1
  BlockHashes hashes;  // of the leading full blocks; the prompt's are known from the beginning
  std::optional<int32_t> cached_tokens;  // set when first scheduled
  std::optional<SteadyTime> first_scheduled;
  std::optional<SteadyTime> first_token;
  int32_t charged = 0;  // leading positions that its tenant was charged for, or were cached
  bool ended = false;
  std::shared_ptr<const SampleMask> mask;  // for the token after `tokens`, once it is known
  std::shared_ptr<Drafter> drafter;        // has `tokens`; null: nothing is guessed
  std::vector<Token> draft;                // what is guessed to follow `tokens`
  DraftRecord record;                      // of what was guessed

  // In flight.
  int32_t rows_in_flight = 0;
  int32_t forced_in_flight = 0;  // the first of these that sample: `tokens` has theirs already
  int32_t tokens_in_flight = 0;  // sampled by the rows after those
  int32_t drafts_in_flight = 0;  // of these, tokens of drafts: perhaps never sampled
  StepId sampled_by = 0;         // the last step that samples for it
  std::optional<LateDraft> late_draft;  // of a row that waits for it, not yet known
  std::deque<LateMask> late_masks;      // of these rows, not yet known, oldest first

  // While running.
  std::optional<SlotId> slot;
  BlockTables tables;
  int32_t blocks_sent = 0;  // leading places that plans have sent; 0: no plan has begun the slot
  int32_t computed = 0;     // planned: positions whose state is in `tables`, with those of drafts
  int32_t prefill_end = 0;  // below it, prefill (or recompute); from it on, decode
  int32_t blocks_committed =
      0;  // leading blocks that need not be looked at for publishing any more
  // Computes the last but one of the prompt's positions; 0: not yet planned.
  StepId prompt_step = 0;

  int32_t planned_draft = 0;  // tokens of the draft that the step being planned may check

  // While running, of a model with state at slots. Checkpoints lie at whole blocks.
  std::optional<CheckpointId> begins_from;  // held until the first row is planned
  int32_t branch = 0;       // where its prefix leaves those that the cache has; 0: at a checkpoint
  int32_t last_branch = 0;  // the one before `branch`: the copy there may still be due
  int32_t copied_at = 0;    // the position at which the state was copied last
  // Where it is to be copied next, if rows have drafts: none goes past it before it is known what
  // of them was right. 0: nowhere.
  int32_t copy_due = 0;
  int32_t anchor_block =
      0;  // blocks before the last checkpoint that is to stay, of those it passed
  // The checkpoint whose row is in flight: whether it is any good is not yet known.
  std::optional<CheckpointId> unconfirmed;
  // The checkpoint of the answer so far, which the next one replaces.
  std::optional<CheckpointId> rolling;
  int32_t rolling_block = 0;

  // While waiting at the head for blocks: what the last look at the prefix cache found.
  BlockCounts blocks_missing;  // empty: there was none
  int32_t blocks_found = 0;
  bool parked = false;  // in group->parked
  // It awaits a checkpoint behind so many blocks, with which its prompt and that of the running
  // sequence `awaited` begin. Not 0: it is in Scheduler::prefix_waiters_.
  int32_t awaited_blocks = 0;
  SequenceId awaited = 0;
  int32_t prefix_waits = 0;  // how often it did so since it had a slot

  bool scoring() const { return scored < prompt_size - 1; }
  bool decoding() const { return computed >= prefill_end; }
  // Returns how many positions are computed if no draft in flight is right.
  int32_t least_computed() const { return computed - drafts_in_flight; }

  // False just after a preemption: a token in flight, or the mask of the next one, is not yet
  // known.
  bool can_start() const { return rows_in_flight == 0 && (!masked || mask != nullptr); }

  bool takes_late_masks() const {
    return masks_late_from.has_value() && static_cast<int32_t>(tokens.size()) >= *masks_late_from;
  }

  // Returns the number of input tokens that could be planned now: 1 or 0 when decoding.
  // The last token of a masked sequence waits for the mask of the token that it samples, unless
  // that may come late.
  int32_t num_ready() const {
    if (drafts_in_flight > 0 && computed == copy_due) return 0;
    const auto size = static_cast<int32_t>(tokens.size());
    if (masked && !takes_late_masks())
      return std::max(std::min(mask ? size : size - 1, max_inputs) - computed, 0);
    return std::min(size + tokens_in_flight, max_inputs) - computed;
  }
};

// Who goes first: the lower priority value, then the earlier arrival.
struct RanksBefore {
  bool operator()(const Sequence* a, const Sequence* b) const {
    return a->priority != b->priority ? a->priority < b->priority : a->order < b->order;
  }
};

}  // namespace millrace

#endif  // MILLRACE_SCHEDULER_SEQUENCE_H_
