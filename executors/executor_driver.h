// For tests and benchmarks: drives an executor's sequences by hand, where the server has a
// scheduler.
#ifndef MILLRACE_EXECUTORS_EXECUTOR_DRIVER_H_
#define MILLRACE_EXECUTORS_EXECUTOR_DRIVER_H_

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "executors/executor.h"

namespace millrace {

// What a sequence has come to, for comparing two bit for bit.
struct SequenceOutput {
  std::vector<Token> tokens;    // the prompt's, then the sampled ones
  std::vector<float> logprobs;  // of the sampled ones, where asked for
  bool operator==(const SequenceOutput&) const = default;
};

// Ends the program on a status that is not OK: a test or a benchmark that cannot go on.
class ExecutorDriver {
 public:
  explicit ExecutorDriver(Executor& executor);

  // A sequence in a free slot, which it returns. `cached`: blocks of another sequence with the same
  // beginning, all full, fewer than the prompt fills.
  SlotId Add(std::vector<Token> prompt, SamplingParams sampling,
             absl::Span<const BlockId> cached = {});
  // Frees the slot and the blocks that it took (not the cached ones).
  void Remove(SlotId slot);

  // One step with the next `count` tokens of each slot. A row that ends with the last known token
  // samples the next, which becomes known. With score_from, positions from there on are scored as
  // well.
  using Share = std::pair<SlotId, int32_t>;
  StepResult Step(absl::Span<const Share> shares, std::optional<int32_t> score_from = std::nullopt);

  // Prefills in chunks, then decodes, each slot's row in every step, until each has `count` sampled
  // tokens; with two steps in flight, as the server does. Not after another call that left tokens
  // to compute unevenly.
  void Generate(absl::Span<const SlotId> slots, int32_t count, int32_t chunk);
  // `steps` decode steps of all slots, two in flight.
  void Decode(absl::Span<const SlotId> slots, int32_t steps);

  const std::vector<Token>& tokens(SlotId slot) const { return sequences_[slot].tokens; }
  const std::vector<BlockId>& blocks(SlotId slot) const { return sequences_[slot].blocks; }
  // Of the sampled tokens, where asked for.
  const std::vector<float>& logprobs(SlotId slot) const { return sequences_[slot].logprobs; }
  SequenceOutput output(SlotId slot) const { return {tokens(slot), logprobs(slot)}; }

 private:
  struct Sequence {
    bool used = false;
    bool started = false;
    std::shared_ptr<const SamplingParams> sampling;
    int32_t prompt_tokens = 0;
    std::vector<Token> tokens;
    int32_t computed = 0;
    std::vector<BlockId> blocks;
    size_t cached = 0;                 // of blocks
    size_t told = 0;                   // of blocks
    std::optional<StepId> sampled_by;  // set: the last known token is still on the device
    std::vector<float> logprobs;
  };
  void AddStart(SlotId slot, StepPlan& plan);
  StepPlan Plan(absl::Span<const Share> shares, std::optional<int32_t> score_from);
  StepResult Take();

  Executor& executor_;
  std::vector<Sequence> sequences_;
  std::vector<BlockId> free_blocks_;
  StepId last_id_ = 0;
};

// Of an executor that has run no step: `prompt`, of less than a block, in block 0, and a copy of
// the block; then a token behind each of the two, in one step. What the two sampled.
std::vector<TokenResult> ForkByCopy(Executor& executor, const std::vector<Token>& prompt,
                                    const SamplingParams& sampling);

// Greedy, with a repetition penalty that lets no token come again.
struct PenalizedOutput {
  std::vector<Token> tokens;   // the prompt's, then `count`
  std::vector<Token> resumed;  // the same, begun again after half of them as after a preemption
  std::vector<Token> freely;   // without the penalty
};
PenalizedOutput GeneratePenalized(Executor& executor, const std::vector<Token>& prompt,
                                  int32_t count);

// Ends the program, saying why, unless `status` is OK.
void CheckOk(const absl::Status& status);

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_EXECUTOR_DRIVER_H_
