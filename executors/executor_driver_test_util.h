// For tests and benchmarks: drives an executor's sequences by hand, where the server has a
// scheduler.
#ifndef MILLRACE_EXECUTORS_EXECUTOR_DRIVER_TEST_UTIL_H_
#define MILLRACE_EXECUTORS_EXECUTOR_DRIVER_TEST_UTIL_H_

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "executors/executor.h"

namespace millrace {

// The state of a sequence, for comparing two bit for bit.
struct SequenceOutput {
  std::vector<Token> tokens;    // the prompt's, then the sampled ones
  std::vector<float> logprobs;  // of the sampled ones, if requested
  bool operator==(const SequenceOutput&) const = default;
};

// Drives sequences. Ends the program on any status that is not OK.
class ExecutorDriver {
 public:
  // `last_id`: of the last step that an earlier driver ran on the executor.
  explicit ExecutorDriver(Executor& executor, StepId last_id = 0);

  // From here on, blocks behind a window are given back in the plan that reads them no more, and
  // taken again at once, by whichever row comes next. Sequences that are added name none for what
  // lies before the window of their first position.
  void ReleaseBehindWindows() { releases_ = true; }

  // Starts a sequence in a free slot and returns the slot. `cached` are full blocks of another
  // sequence with the same beginning, fewer than the prompt fills: the same of every group, from
  // before blocks were released.
  SlotId Add(std::vector<Token> prompt, SamplingParams sampling,
             absl::Span<const BlockId> cached = {});
  // Frees the slot and its own blocks (not the cached ones).
  void Remove(SlotId slot);

  // Allows only the mask's tokens from the slot's next sampled one on. Null allows all.
  void SetMask(SlotId slot, std::shared_ptr<const SampleMask> mask) {
    sequences_[slot].mask = std::move(mask);
  }

  // Runs one step with the next `count` tokens of each slot. A row that ends with the last known
  // token samples the next, which becomes known. With score_from, positions from there on are
  // scored as well.
  using Share = std::pair<SlotId, int32_t>;
  StepResult Step(absl::Span<const Share> shares, std::optional<int32_t> score_from = std::nullopt);

  // Prefills in chunks and then decodes, with each slot's row in every step, until each slot has
  // `count` sampled tokens. Two steps are in flight, as in the server. Must not follow a call that
  // left slots at uneven positions.
  void Generate(absl::Span<const SlotId> slots, int32_t count, int32_t chunk);
  // Returns what is guessed to follow a slot's first `known` tokens.
  using Guess = std::function<std::vector<Token>(SlotId slot, size_t known)>;
  // As Generate, but rows that decode check drafts of at most `most` tokens. Slots may get more
  // than `count` tokens.
  void GenerateWithDrafts(absl::Span<const SlotId> slots, int32_t count, int32_t chunk,
                          int32_t most, const Guess& guess);
  // Runs `steps` decode steps of all slots, with two in flight.
  void Decode(absl::Span<const SlotId> slots, int32_t steps);

  StepId last_id() const { return last_id_; }
  const std::vector<Token>& tokens(SlotId slot) const { return sequences_[slot].tokens; }
  // Returns the blocks of every group, as long as none have been released.
  const std::vector<BlockId>& blocks(SlotId slot) const { return sequences_[slot].tables[0]; }
  // Log-probabilities of the sampled tokens, if requested.
  const std::vector<float>& logprobs(SlotId slot) const { return sequences_[slot].logprobs; }
  SequenceOutput output(SlotId slot) const { return {tokens(slot), logprobs(slot)}; }

 private:
  struct Sequence {
    bool used = false;
    bool started = false;
    std::shared_ptr<const SamplingParams> sampling;
    std::shared_ptr<const SampleMask> mask;
    int32_t prompt_tokens = 0;
    std::vector<Token> tokens;
    int32_t computed = 0;                      // if all drafts in flight are right
    int32_t drafts_in_flight = 0;              // their tokens
    std::vector<std::vector<BlockId>> tables;  // by paged group; kNoBlock where released
    size_t cached = 0;                         // cached blocks of each
    size_t sent = 0;                           // blocks of each already sent to the executor
    std::optional<StepId> sampled_by;          // set if the last known token is still on the device
    std::vector<float> logprobs;
  };
  void AddStart(SlotId slot, StepPlan& plan);
  void Release(Sequence& sequence);
  Range AddBlocks(Sequence& sequence, int32_t end, StepPlan& plan);
  StepPlan Plan(absl::Span<const Share> shares, std::optional<int32_t> score_from);
  StepPlan PlanDrafts(absl::Span<const SlotId> slots, int32_t most, bool late, const Guess& guess);
  // Commits the oldest step, whose drafts had these lengths, and gives the step behind it, whose
  // drafts may be so long, its own.
  void TakeDrafts(absl::Span<const SlotId> slots, const std::vector<int32_t>& lengths,
                  std::vector<int32_t>* next, const Guess& guess);
  StepResult Take();

  Executor& executor_;
  std::vector<Sequence> sequences_;
  std::vector<int> groups_;                        // those with pages
  std::vector<std::vector<BlockId>> free_blocks_;  // of each, the next one last
  bool releases_ = false;
  StepId last_id_;
};

// Checks block copies on an executor that has run no step: `prompt`, of less than a block, in block
// 0; a copy of the block; then a token behind each of the two, in one step. Returns the two sampled
// tokens.
std::vector<TokenResult> ForkByCopy(Executor& executor, const std::vector<Token>& prompt,
                                    const SamplingParams& sampling);

// Greedy generation with a repetition penalty that prevents every repeated token.
struct PenalizedOutput {
  std::vector<Token> tokens;   // the prompt's, then `count`
  std::vector<Token> resumed;  // as `tokens`, but restarted halfway as after a preemption
  std::vector<Token> freely;   // without the penalty
};
PenalizedOutput GeneratePenalized(Executor& executor, const std::vector<Token>& prompt,
                                  int32_t count);

// Ends the program with a message unless `status` is OK.
void CheckOk(const absl::Status& status);

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_EXECUTOR_DRIVER_TEST_UTIL_H_
