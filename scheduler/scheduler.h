// Decides what each step of the model computes, and for whom.
//
// A single-threaded state machine without clocks, locks or randomness: the same calls make the same
// plans. The README tells the policies.
#ifndef MILLRACE_SCHEDULER_SCHEDULER_H_
#define MILLRACE_SCHEDULER_SCHEDULER_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "plan/step_plan.h"
#include "scheduler/block_events.h"
#include "scheduler/block_hash.h"
#include "scheduler/block_tables.h"
#include "scheduler/checkpoint_pool.h"
#include "scheduler/fair_queue.h"
#include "scheduler/scheduler_status.h"
#include "scheduler/sequence.h"
#include "scheduler/sequence_request.h"
#include "scheduler/state_pools.h"
#include "scheduler/step_budget.h"
#include "scheduler/token_event.h"

namespace millrace {

struct SchedulerOptions {
  StepLimits limits;
  bool prefix_caching = true;
  bool late_masks = false;            // rows may stand in plans before their masks are known
  bool block_events = false;          // TakeBlockEvents is called
  int32_t num_draft_tokens = 0;       // of a row's draft, at most; to kMaxDraftTokens
  int32_t num_step_draft_tokens = 0;  // of all drafts of a step together, at most

  // Tokens between the first checkpoints of the states of a long prompt; between later ones there
  // are more.
  int32_t checkpoint_distance = 1024;

  // The time that a step with sequences that decode may take; see StepBudget.
  std::optional<Duration> itl_slo = std::nullopt;
};

// The counters only grow; of two readings, the difference is what happened between them.
struct SchedulerStats {
  // Gauges of the current state.
  int32_t num_running = 0;  // hold a slot
  int32_t num_waiting = 0;
  // Blocks are those of the pool that has as many as the sequences' tokens take
  // (StatePools::main).
  int32_t blocks_held = 0;    // by sequences
  int32_t blocks_cached = 0;  // by none, but found by their content
  int32_t blocks_free = 0;
  // The share of its blocks that sequences hold, of the pool where it is largest: 0 to 1.
  double usage = 0;
  // Places of checkpoints, of models with state at slots.
  int32_t checkpoints_held = 0;
  int32_t checkpoints_free = 0;

  // Counters.
  int64_t prefill_tokens = 0;  // inputs planned, recomputed ones too
  int64_t decode_tokens = 0;
  int64_t prefix_queries = 0;   // prompt tokens looked up, each sequence once, when first scheduled
  int64_t prefix_hits = 0;      // of these, found
  int64_t checkpoint_hits = 0;  // sequences that began from a checkpoint
  int64_t checkpoints_taken = 0;
  int64_t checkpoints_evicted = 0;  // gave way to others
  // Tokens whose blocks were cached, but which had to be computed again for want of a checkpoint.
  int64_t replayed_tokens = 0;
  int64_t preemptions = 0;
  int64_t forced_tokens = 0;  // Scheduler::Force
  int64_t drafts = 0;         // rows with one
  int64_t draft_tokens = 0;   // of these, computed
  // Of these, sampled too, by their place in the draft.
  std::array<int64_t, kMaxDraftTokens> accepted_tokens{};

  // By the model of what steps cost, so that they may be off: how much longer prompts took since
  // they were cut, and how much of that sequences that decode got no tokens for.
  Duration prompt_cut_time{};
  Duration prompt_cut_loss{};
};

// How to drive it: Submit each Plan() until there is none, Commit each result in the order of the
// plans, set the masks and drafts that TakeLateMasks and TakeLateDrafts return, repeat. A sequence
// that was added gets exactly one event with `end`, and nothing after it.
class Scheduler {
 public:
  // Returns InvalidArgument if a limit is not positive, no group of the state is paged, a step of
  // an encoder has fewer tokens than the longest text or its prefixes are to be cached, or a step
  // has fewer tokens than slots (each running sequence must be able to advance in every step).
  static absl::StatusOr<std::unique_ptr<Scheduler>> Create(const SchedulerOptions& options);

  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Adds a sequence to the queue. InvalidArgument: ValidateSequence refuses it, or its prompt is
  // not its group's. AlreadyExists: the id is in use.
  absl::Status Add(SequenceRequest request);

  // Ends the sequence at once, at whatever stage; `why` is not OK. Its blocks are available to the
  // next plan. False, and no event: no such sequence is alive.
  bool Cancel(SequenceId id, absl::Status why, SteadyTime now, std::vector<TokenEvent>* events);
  void CancelAll(const absl::Status& why, SteadyTime now, std::vector<TokenEvent>* events);

  // Sets the mask for the next token of a sequence with masks; called once after each commit of a
  // token that did not end it. No effect on one that has ended.
  void SetMask(SequenceId id, std::shared_ptr<const SampleMask> mask);

  // Returns the masks that have become known since the last call and that steps in flight wait for:
  // those of SetMask and Force, and of sequences that have ended one that allows every token, since
  // what is sampled for them is dropped. They are for Executor::SetMasks.
  std::vector<LateMask> TakeLateMasks() { return std::exchange(late_masks_, {}); }

  // Returns the drafts that have become known since the last call and that rows of steps in flight
  // wait for, empty ones for sequences that have ended. They are for Executor::SetDrafts.
  std::vector<LateDraft> TakeLateDrafts() { return std::exchange(late_drafts_, {}); }

  // Gives a sequence with masks the tokens that must come next, so that they need not be sampled:
  // its next row computes them together. Call it before the SetMask for the token after them, and
  // only if the sequence neither penalizes tokens nor wants log-probabilities. Appends one event,
  // whose `sampled` is a range of `tokens`: all of them, or fewer if one of them ends the sequence.
  // No effect, and no event, on a sequence that has ended.
  void Force(SequenceId id, absl::Span<const Token> tokens, SteadyTime now,
             std::vector<TokenEvent>* events);

  // Has the sequence's next rows stand in plans only once their masks are known, since one came so
  // late that a step may have waited for it: 32 rows the first time, then 16 times as many.
  void AwaitMasks(SequenceId id);

  // Ends a sequence whose tokens so far are a complete answer. False, and no event: as Cancel.
  bool Complete(SequenceId id, SteadyTime now, std::vector<TokenEvent>* events);

  // Returns the next step; nothing while kMaxStepsInFlight are in flight or there is nothing to
  // compute until a result comes. A plan that is returned counts as in flight until its result is
  // committed: one that could not be submitted is committed with an error. The times of Plan and
  // Commit also tell how long steps take, by which prompts are cut (SchedulerOptions::itl_slo).
  std::optional<StepPlan> Plan(SteadyTime now);

  // Returns the time from which on the next step is to be planned. While a step runs that takes
  // long, as the ones before it tell, that is some time before its end, so that the next one has
  // what comes until then; otherwise it has passed.
  SteadyTime PlanFrom() const;

  // Takes the oldest step's result; appends events, in the order of the rows. Tokens of a sequence
  // that has ended meanwhile are dropped. A row that failed ends its sequence and those of its
  // prompt_group that run, an error of the result every sequence with a row in the step. Internal:
  // the result does not answer the plan; nothing was done, and nothing can follow.
  absl::Status Commit(const StepResult& result, SteadyTime now, std::vector<TokenEvent>* events);

  // Returns what became of the prefix cache's blocks since the last call, in its order: nothing
  // without SchedulerOptions::block_events, with which it is to be called after each step.
  std::vector<BlockEvent> TakeBlockEvents() { return pools_.TakeEvents(); }

  // Sequences are alive, or steps in flight.
  bool HasWork() const { return !sequences_.empty() || num_in_flight_ > 0; }

  SchedulerStats stats() const;

  // Returns the first sequences, and the blocks in at most `most_cells` ranges. Takes a few
  // nanoseconds a block: for people, not for each step.
  SchedulerStatus Status(size_t most_sequences, int32_t most_cells) const;

 private:
  friend class SchedulerAuditor;  // tests: counts every holder of every block

  // A submitted row, as its commit needs it.
  struct PlannedRow {
    Sequence* sequence;
    SlotId slot;
    int32_t end;  // position after its last input token, if drafts before it are right
    int32_t num_scored;
    bool samples;
    int32_t num_draft = 0;
  };
  struct PlannedStep {
    StepId id = 0;
    std::vector<PlannedRow> rows;
    std::vector<CheckpointId> copies;  // to which it copies states
    StepWork work;
    SteadyTime planned;
  };
  struct Draft;

  explicit Scheduler(const SchedulerOptions& options);

  // A step begins when the one before it has ended, or, if there was none, when it was planned.
  SteadyTime BeginOf(const PlannedStep& oldest) const {
    return std::max(oldest.planned, last_commit_);
  }
  int32_t BlocksFor(int32_t positions) const { return options_.limits.state.BlocksFor(positions); }
  int32_t BlocksToGrow(const Sequence& sequence, int pool) const;
  // Returns the inputs of a sequence that decodes, in the step that is being planned.
  static int32_t InputsToDecode(const Sequence& sequence) {
    const int32_t ready = sequence.num_ready();
    return ready > 0 ? ready + sequence.planned_draft : 0;
  }
  int32_t BlocksToDecode(const Sequence& sequence) const;
  void Reserve(const Sequence& sequence, int32_t sign, BlockCounts& reserved) const;

  void RankTenants();
  bool IsOver(const TenantAccount& tenant, int64_t held, int64_t total) const;
  bool HoldsTooMuch(const TenantAccount& tenant, const BlockCounts& more) const;
  void AdmitWithinShares(Draft& draft);
  Sequence* MakeRoom(Draft& draft, BlockCounts& reserved, CachedPrefix& prefix);
  Sequence* FindVictim(const Sequence& sequence, const BlockCounts& reserved) const;
  void BeginBudget(Draft& draft);
  void PlanRunning(Draft& draft);
  void Admit(Draft& draft);
  // Returns whether what steps up to this one compute of a prompt can be shared: the blocks of
  // those that are planned; checkpoints once they are committed.
  bool IsShared(StepId step) const {
    return step <= (has_slots_ ? last_step_ - num_in_flight_ : last_step_);
  }
  // Returns whether such steps compute the sequence's prompt but for its last position.
  bool HasPrompt(const Sequence& sequence) const {
    return sequence.prompt_step != 0 && IsShared(sequence.prompt_step);
  }
  const Sequence* FindDonor(const Sequence& sequence) const;
  void Park(Sequence& sequence);
  void Unpark(PromptGroup& group);
  void UnparkReady();
  bool WaitsForGroup(const Sequence& sequence, const Sequence* donor) const;
  static bool RunsAhead(const Sequence& other, const Sequence& sequence);
  bool WaitsForPrefix(Sequence& sequence);
  bool WaitsForAnother(Sequence& sequence);
  bool AwaitsStill(const Sequence& sequence) const;
  void UnparkPrefixes();
  std::optional<CachedPrefix> FitBlocks(Sequence& sequence, const Sequence* donor,
                                        const BlockCounts& reserved);
  int32_t FitWindows(const Sequence& sequence, const Draft& draft) const;
  bool Lacks(const Sequence& sequence, int pool, const BlockCounts& reserved) const {
    return sequence.blocks_missing[pool] > pools_.available(pool) - reserved[pool];
  }
  bool LacksBlocks(const Sequence& sequence, const BlockCounts& reserved) const;
  bool HistoryFits(const Sequence& sequence, const StepPlan& plan) const;
  size_t MostCached(const Sequence& sequence) const;
  CachedPrefix FindPrefix(const Sequence& sequence, const Sequence* donor) const;
  void TakeSlot(Sequence& sequence, const CachedPrefix& prefix, bool shared, StepPlan& plan);
  void AddStart(const Sequence& sequence, StepPlan& plan);
  void ReleaseBehindWindows();
  int32_t FreeBlocksFor(size_t running, int32_t num_tokens, Draft& draft);
  void Preempt(Sequence& sequence, Draft& draft);
  void AddRow(Sequence& sequence, int32_t num_tokens, Draft& draft);
  bool BeginsFromGroup(const Sequence& sequence) const;

  double CostOfPosition(int32_t rows, int64_t context) const;
  int32_t LongestDraft(const Sequence& sequence) const;
  void ChooseDrafts(Draft& draft, int32_t rows, int64_t context);
  void AddDraft(Sequence& sequence, int32_t length, StepRow& row, StepPlan& plan);
  void CountDraft(int32_t length);
  void SetLateDraft(Sequence& sequence);
  void CountAccepted(int32_t accepted);
  void GuessOn(Sequence& sequence, size_t first);

  int32_t PromptCheckpoint(const Sequence& sequence) const;
  CheckpointKind KindOf(const Sequence& sequence, int32_t position) const;
  int32_t NextDistance(int32_t position) const;
  bool HasCheckpoint(const Sequence& sequence, int32_t position) const;
  int32_t NextCopy(const Sequence& sequence, int32_t computed, int32_t end) const;
  int32_t CutAtCheckpoint(const Sequence& sequence, int32_t num_tokens) const;
  CachedPrefix CutToCheckpoint(const Sequence& sequence, CachedPrefix prefix) const;
  void BeginAt(const CachedPrefix& prefix, Sequence& sequence);
  void RestoreState(Sequence& sequence, Draft& draft);
  void MoveState(BlockId from, BlockId to, StepPlan& plan) const;
  void FindStatesToCopy(Draft& draft);
  std::optional<CheckpointId> TakeCheckpoint(Sequence& sequence, int32_t position);
  // Returns the bytes of the states that FindStatesToCopy has noted.
  int64_t BytesToCopy(const Draft& draft) const;
  void CopyStates(Draft& draft);
  void ConfirmCheckpoint(Sequence& sequence, int32_t end);
  void ForgetCheckpoints(Sequence& sequence);

  void AddLogits(Sequence& sequence, int32_t num_tokens, StepRow& row, PlannedRow& planned,
                 StepPlan& plan);

  absl::Status CheckAnswers(const StepResult& result, const PlannedStep& step) const;
  void CommitRow(const PlannedRow& row, const RowResult& row_result, const StepResult& result,
                 SteadyTime now, std::vector<TokenEvent>* events);
  void FailGroup(Sequence& sequence, const absl::Status& why, SteadyTime now,
                 std::vector<TokenEvent>* events);
  void PublishBlocks(Sequence& sequence, int32_t end);
  void UnpublishBlocks(const Sequence& sequence);
  std::optional<EndReason> TakeToken(Sequence& sequence, Token token, SteadyTime now);
  // Gives the oldest row of the sequence that waits for its mask this one.
  void SetLateMask(Sequence& sequence, std::shared_ptr<const SampleMask> mask);
  absl::Status JoinGroup(uint64_t id, Sequence& sequence);
  void LeaveGroup(Sequence& sequence);
  SequenceEnd End(Sequence& sequence, EndReason reason, absl::Status status, SteadyTime now);
  void LeaveSlot(Sequence& sequence);

  const SchedulerOptions options_;
  const bool has_slots_;  // state lies at slots, beside that in blocks
  // With state at slots a prefix is shared by a checkpoint.
  const bool shares_prefixes_;
  const std::shared_ptr<const SampleMask> all_tokens_;
  std::vector<LateMask> late_masks_;    // for TakeLateMasks
  std::vector<LateDraft> late_drafts_;  // for TakeLateDrafts
  StatePools pools_;
  CheckpointPool checkpoints_;
  BlockHasher hasher_;

  absl::flat_hash_map<SequenceId, std::unique_ptr<Sequence>> sequences_;  // alive
  std::vector<Sequence*> running_;                                        // as RunsBefore has it
  FairQueue waiting_;                                                     // but for parked ones
  absl::flat_hash_map<uint64_t, std::unique_ptr<PromptGroup>> groups_;
  std::vector<std::pair<uint64_t, StepId>> ready_groups_;  // the steps that compute their prompts
  std::vector<Sequence*> prefix_waiters_;                  // WaitsForPrefix; not in the queue
  std::vector<std::unique_ptr<Sequence>> ended_;           // with rows in flight
  std::vector<SlotId> free_slots_;
  uint64_t num_added_ = 0;

  StepId last_step_ = 0;
  int num_in_flight_ = 0;
  std::array<PlannedStep, kMaxStepsInFlight> in_flight_;  // by id modulo their number
  SteadyTime last_commit_;
  StepBudget budget_;

  SchedulerStats counters_;
};

}  // namespace millrace

#endif  // MILLRACE_SCHEDULER_SCHEDULER_H_
