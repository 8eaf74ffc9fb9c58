// The part of Scheduler that takes checkpoints of states at slots, and begins from them.
//
// A state is that of the tokens before one position, and of no other: a sequence can only begin
// where a copy was made. Copies are made at whole blocks, where pages end, too. A row ends there,
// and the next plan copies the state before its own rows change it.
#include <algorithm>
#include <utility>

#include "scheduler/scheduler.h"
#include "scheduler/scheduler_draft.h"

namespace millrace {
namespace {

// How often a sequence waits for a checkpoint before it is admitted. The one that was to make it
// may end before, or find no place for it; prompts would else run one after the other.
constexpr int32_t kMostPrefixWaits = 2;

// Blocks between copies of the state of a sequence whose rows check drafts. Each costs up to one
// step in which it waits.
constexpr int32_t kDraftedBlocks = 4;

}  // namespace

// Returns where the state before the answer is copied: the last whole block, but half a block
// before the prompt's end, since its last tokens open the answer, and the next turn of a chat may
// open it otherwise. 0: nowhere.
int32_t Scheduler::PromptCheckpoint(const Sequence& sequence) const {
  const int32_t block_size = options_.limits.block_size();
  const int32_t most = sequence.prompt_size - std::max(block_size / 2, 1);
  return std::max(most, 0) / block_size * block_size;
}

CheckpointKind Scheduler::KindOf(const Sequence& sequence, int32_t position) const {
  if (position >= sequence.prompt_size) return CheckpointKind::kAnswer;
  return position == PromptCheckpoint(sequence) ? CheckpointKind::kPromptEnd
                                                : CheckpointKind::kWithinPrompt;
}

// Returns where the state is copied next within a prompt, if it was at `position`: after half as
// many tokens as lie before it, so that what is computed again is a third at the most.
int32_t Scheduler::NextDistance(int32_t position) const {
  const int32_t block_size = options_.limits.block_size();
  const int32_t tokens = std::max(options_.checkpoint_distance, position / 2);
  return position + (tokens + block_size - 1) / block_size * block_size;
}

bool Scheduler::HasCheckpoint(const Sequence& sequence, int32_t position) const {
  const int32_t blocks = position / options_.limits.block_size();
  const std::vector<BlockHash>& hashes = sequence.hashes.blocks;
  return blocks > 0 && blocks <= static_cast<int32_t>(hashes.size()) &&
         checkpoints_.Find(hashes[blocks - 1]).has_value();
}

// Returns the first position after `computed` and before `end` where the state of a prompt is to be
// copied, or `end`.
int32_t Scheduler::NextCopy(const Sequence& sequence, int32_t computed, int32_t end) const {
  int32_t next = end;
  const auto consider = [&](int32_t position) {
    if (position > computed && position < next && !HasCheckpoint(sequence, position)) {
      next = position;
    }
  };
  consider(PromptCheckpoint(sequence));
  consider(sequence.branch);
  consider(sequence.last_branch);
  // Not shortly before the end, where there is one in any case.
  const int32_t last = std::min(next, sequence.prefill_end - options_.checkpoint_distance / 2);
  for (int32_t position = NextDistance(0); position < last; position = NextDistance(position)) {
    consider(position);
  }
  return next;
}

// Returns how many of `num_tokens` tokens the next row of a prompt may have.
int32_t Scheduler::CutAtCheckpoint(const Sequence& sequence, int32_t num_tokens) const {
  if (checkpoints_.size() == 0) return num_tokens;
  return NextCopy(sequence, sequence.computed, sequence.computed + num_tokens) - sequence.computed;
}

// Cuts a prefix of blocks back to its last checkpoint.
CachedPrefix Scheduler::CutToCheckpoint(const Sequence& sequence, CachedPrefix prefix) const {
  const int32_t matched = prefix.tables.length();
  while (true) {
    int32_t blocks = prefix.tables.length();
    while (blocks > 0 && !HasCheckpoint(sequence, blocks * options_.limits.block_size())) --blocks;
    if (blocks == prefix.tables.length()) break;
    // Other blocks with windows belong to it, of which some may be gone.
    prefix = pools_.FindPrefix(sequence, blocks);
  }
  const int32_t blocks = prefix.tables.length();
  if (blocks > 0) prefix.checkpoint = checkpoints_.Find(sequence.hashes.blocks[blocks - 1]);
  prefix.matched = matched;
  return prefix;
}

// Notes where a sequence begins that takes a slot, and where it leaves what others have computed:
// more may follow them up to there. A block is not worth a step of its own.
void Scheduler::BeginAt(const CachedPrefix& prefix, Sequence& sequence) {
  const int32_t blocks = prefix.tables.length();
  const int32_t replayed = prefix.matched - blocks;
  sequence.anchor_block = blocks;
  sequence.branch = replayed > 1 ? prefix.matched * options_.limits.block_size() : 0;
  counters_.replayed_tokens += replayed * options_.limits.block_size();
  // Choices of a prompt, and sequences that were preempted, tell nothing of what prompts begin
  // with.
  bool tells_use = !BeginsFromGroup(sequence) && !sequence.cached_tokens.has_value();
  // The last one that gave way of those it would have begun from.
  for (int32_t gone = prefix.matched; tells_use && gone > blocks; --gone) {
    tells_use = !checkpoints_.CountMissed(sequence.hashes.blocks[gone - 1]);
  }
  if (!prefix.checkpoint.has_value()) return;
  checkpoints_.Hold(*prefix.checkpoint, tells_use);
  sequence.begins_from = prefix.checkpoint;
  ++counters_.checkpoint_hits;
}

// Returns whether plans have the running sequence's rows before those of one that waits, as far as
// is known by now: who waits for it is then not held up by a tenant that was served more.
bool Scheduler::RunsAhead(const Sequence& other, const Sequence& sequence) {
  if (!RanksBefore()(&other, &sequence)) return false;
  if (other.priority < sequence.priority || other.tenant == sequence.tenant) return true;
  return !other.tenant->over_share && !FairQueue::GoesBefore(*sequence.tenant, *other.tenant);
}

// Takes a sequence out of the queue until there is a checkpoint where its prompt leaves that of a
// running one that goes before it and has not come so far, which then makes one there. So one
// alone computes a long beginning of many prompts that come together. Returns false, and has no
// effect, where that saves little, or no such checkpoint will be made.
bool Scheduler::WaitsForPrefix(Sequence& sequence) {
  const bool has_choices = sequence.group != nullptr && sequence.group->members.size() > 1;
  if (checkpoints_.size() == 0 || has_choices || sequence.scoring()) return false;
  if (sequence.prefix_waits == kMostPrefixWaits) return false;
  const int32_t block_size = options_.limits.block_size();
  const std::vector<BlockHash>& hashes = sequence.hashes.blocks;
  const size_t most_cached = MostCached(sequence);
  Sequence* before = nullptr;
  int32_t most = 0;
  for (Sequence* const other : running_) {
    if (other->decoding() || !RunsAhead(*other, sequence)) continue;
    const auto& others = other->hashes.blocks;
    const size_t end = std::min(most_cached, others.size());
    if (static_cast<size_t>(most) >= end || hashes[most] != others[most]) continue;
    // A block's hash is that of all blocks before it, too.
    const auto parts = std::partition_point(
        hashes.begin() + most, hashes.begin() + end,
        [&](const BlockHash& hash) { return hash == others[&hash - hashes.data()]; });
    const auto blocks = static_cast<int32_t>(parts - hashes.begin());
    const int32_t position = blocks * block_size;
    const bool is_free = other->branch <= other->computed || other->branch == position;
    if (position >= other->computed && is_free) {
      most = blocks;
      before = other;
    }
  }
  const int32_t least = std::max(options_.checkpoint_distance / 4, block_size);
  if (most * block_size < least) return false;
  const int32_t begin = FindPrefix(sequence, /*donor=*/nullptr).tables.length() * block_size;
  if (most * block_size - begin < least) return false;
  if (const int32_t branch = most * block_size; branch != before->branch) {
    before->last_branch = std::exchange(before->branch, branch);
  }
  ++sequence.prefix_waits;
  sequence.awaited = before->id;
  sequence.awaited_blocks = most;
  waiting_.Erase(sequence);
  prefix_waiters_.push_back(&sequence);
  return true;
}

// Takes a sequence out of the queue while another one computes what it begins with. Returns false,
// and has no effect, if there is none. Of those that wait for a prefix, each leaves a slot free.
bool Scheduler::WaitsForAnother(Sequence& sequence) {
  if (WaitsForGroup(sequence, FindDonor(sequence))) {
    Park(sequence);
    return true;
  }
  return free_slots_.size() > prefix_waiters_.size() && WaitsForPrefix(sequence);
}

// The copy is made by the row behind it, of which a whole block or a token tells that it is
// committed. Without a checkpoint by then, no place was to be had.
bool Scheduler::AwaitsStill(const Sequence& sequence) const {
  const auto it = sequences_.find(sequence.awaited);
  if (it == sequences_.end() || !it->second->slot.has_value()) return false;
  const Sequence& other = *it->second;
  const bool is_past = other.blocks_committed > sequence.awaited_blocks ||
                       static_cast<int32_t>(other.tokens.size()) > other.prefill_end;
  return !is_past &&
         !HasCheckpoint(sequence, sequence.awaited_blocks * options_.limits.block_size());
}

void Scheduler::UnparkPrefixes() {
  std::erase_if(prefix_waiters_, [this](Sequence* sequence) {
    if (AwaitsStill(*sequence)) return false;
    sequence->awaited_blocks = 0;
    sequence->blocks_missing.clear();  // it will want fewer
    waiting_.Push(*sequence);
    return true;
  });
}

// Moves the state that the sequence begins from to its slot, in the plan of its first row.
void Scheduler::RestoreState(Sequence& sequence, Draft& draft) {
  const CheckpointId from = *std::exchange(sequence.begins_from, std::nullopt);
  MoveState(options_.limits.max_num_seqs + from, *sequence.slot, draft.plan);
  draft.restored.push_back(from);
}

void Scheduler::MoveState(BlockId from, BlockId to, StepPlan& plan) const {
  const StateLayout& state = options_.limits.state;
  for (int group = 0; group < state.num_groups(); ++group) {
    if (state.Paged(group) != nullptr) continue;
    plan.moves.push_back({.group = group, .from = {.block = from}, .to = {.block = to}});
  }
}

// Notes the slots whose states are to be copied as the steps planned so far leave them, before this
// plan's rows change that.
void Scheduler::FindStatesToCopy(Draft& draft) {
  if (checkpoints_.size() == 0) return;
  const int32_t block_size = options_.limits.block_size();
  for (Sequence* sequence : running_) {
    const int32_t position = sequence->computed;
    if (sequence->copy_due <= sequence->least_computed()) {
      sequence->copy_due = (sequence->least_computed() / block_size + kDraftedBlocks) * block_size;
    }
    if (sequence->drafts_in_flight > 0) continue;  // It is not known where it stands.
    if (sequence->blocks_sent == 0 || position % block_size != 0) continue;
    if (position == sequence->copied_at) continue;
    if (HasCheckpoint(*sequence, position)) {
      sequence->anchor_block = position / options_.limits.block_size();
    } else if (sequence->decoding() ||
               NextCopy(*sequence, position - 1, position + 1) == position) {
      draft.to_copy.push_back({sequence, *sequence->slot, position});
    }
  }
}

int64_t Scheduler::BytesToCopy(const Draft& draft) const {
  return options_.limits.state.SlotBytes() * static_cast<int64_t>(draft.to_copy.size());
}

void Scheduler::CopyStates(Draft& draft) {
  for (const StateToCopy& copy : draft.to_copy) {
    const std::optional<CheckpointId> to = TakeCheckpoint(*copy.sequence, copy.position);
    if (!to.has_value()) {
      PromptGroup* const group = copy.sequence->group;
      if (group != nullptr && copy.position == PromptCheckpoint(*copy.sequence)) {
        ++group->refused_checkpoints;
      }
      continue;
    }
    MoveState(copy.slot, options_.limits.max_num_seqs + *to, draft.plan);
    draft.step.copies.push_back(*to);
    ++counters_.checkpoints_taken;
  }
  // The plan reads these: until here, no place of them could be taken.
  for (const CheckpointId restored : draft.restored) checkpoints_.Release(restored);
}

// Takes a place for a copy of the sequence's state. In the answer each replaces the one before it,
// so that there is one at its end, wherever that is; but for those at growing distances.
std::optional<CheckpointId> Scheduler::TakeCheckpoint(Sequence& sequence, int32_t position) {
  const std::vector<BlockHash>& hashes = sequence.hashes.blocks;
  std::optional<CheckpointId> before;
  while (sequence.anchor_block > 0 && !before.has_value()) {
    before = checkpoints_.Find(hashes[sequence.anchor_block - 1]);
    if (!before.has_value()) --sequence.anchor_block;  // gave way
  }
  const std::optional<CheckpointId> last = std::exchange(sequence.rolling, std::nullopt);
  std::optional<CheckpointId> taken = last;
  if (!last.has_value() ||
      !checkpoints_.TakeAgain(*last, hashes[sequence.rolling_block - 1], position, before)) {
    taken = checkpoints_.Take(KindOf(sequence, position), position, before);
  }
  sequence.copied_at = position;
  if (!taken.has_value()) return std::nullopt;

  const int32_t block = position / options_.limits.block_size();
  const bool stays = position < sequence.prefill_end ||
                     position >= NextDistance(sequence.anchor_block * options_.limits.block_size());
  if (stays) {
    sequence.anchor_block = block;
  } else {
    sequence.rolling = taken;
    sequence.rolling_block = block;
  }
  if (block <= sequence.blocks_committed) {
    checkpoints_.Name(*taken, hashes[block - 1]);
  } else {
    sequence.unconfirmed = taken;
  }
  return taken;
}

// The committed inputs up to `end` are those of the copied state, if a step in flight copies one.
void Scheduler::ConfirmCheckpoint(Sequence& sequence, int32_t end) {
  if (!sequence.unconfirmed.has_value() || end < sequence.copied_at) return;
  const int32_t block = sequence.copied_at / options_.limits.block_size();
  checkpoints_.Name(*sequence.unconfirmed, sequence.hashes.blocks[block - 1]);
  sequence.unconfirmed.reset();
}

void Scheduler::ForgetCheckpoints(Sequence& sequence) {
  if (sequence.begins_from.has_value()) checkpoints_.Release(*sequence.begins_from);
  sequence.begins_from.reset();
  sequence.unconfirmed.reset();
  sequence.rolling.reset();
  sequence.branch = 0;
  sequence.last_branch = 0;
  sequence.copied_at = 0;
  sequence.copy_due = 0;
  sequence.anchor_block = 0;
}

}  // namespace millrace
