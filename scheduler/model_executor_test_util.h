// For tests: an executor whose "model" is a hash, run on the caller's thread.
#ifndef MILLRACE_SCHEDULER_MODEL_EXECUTOR_TEST_UTIL_H_
#define MILLRACE_SCHEDULER_MODEL_EXECUTOR_TEST_UTIL_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "plan/step_plan.h"

namespace millrace {

// Keeps block tables and a KV cache as a real executor does, and checks what ValidatePlan cannot:
// that slots, tables and positions continue what earlier plans began, that no row writes a block
// that another row of the step holds, and that a state is that of the tokens before the row.
//
// A position's cached value, which each group of the state has, depends on all that the position
// sees: of paged groups the cached values in their windows, of a group of slots a state that every
// token changes. So does a sampled token. They are read through the block tables: one block that is
// shared, released, reused or recomputed wrongly shows as a wrong token. Of a sequence that
// penalizes it depends on how often each token came, too. Reference() gives the right ones.
class ModelExecutor {
 public:
  explicit ModelExecutor(const StepLimits& limits);

  // A fault that is put in the model's place when a step runs.
  enum class Fault {
    kNone,
    kRow,     // the row fails; what it wrote is garbage
    kSilent,  // what the row wrote is garbage, which is noticed where logits depend on it
  };
  struct Script {
    std::function<Fault(const StepRow&)> fault;
    std::function<std::optional<Token>(const StepRow&)> sampled;
    bool fail_step = false;
  };

  // InvalidArgument: the plan breaks the contract.
  absl::Status Submit(StepPlan plan);

  // Hands over drafts that rows in flight wait for; all must be there when their step runs.
  // InvalidArgument: a row waits for none, or for a shorter one.
  absl::Status SetDrafts(absl::Span<const LateDraft> drafts);

  int num_in_flight() const { return static_cast<int>(in_flight_.size()); }
  const StepPlan& oldest() const { return in_flight_.front(); }

  // Runs the oldest step. Requires one in flight.
  StepResult Run(const Script& script);

  // The output of a sequence that runs alone.
  struct Output {
    std::vector<float> prompt_logprobs;  // of the second token on
    std::vector<Token> generated;        // to the first stop token, or max_tokens of them
  };
  Output Reference(absl::Span<const Token> prompt, int32_t max_tokens,
                   absl::Span<const Token> stops, bool penalizes) const;

 private:
  using Value = uint64_t;
  using Tables = std::vector<std::vector<BlockId>>;

  // A slot after all steps that were submitted, and after those that were run: when one sequence
  // follows another in it, steps of the first may still be in flight.
  struct PlannedSlot {
    bool taken = false;
    Tables tables;                     // of each group; empty of one of slots
    int32_t places = 0;                // in each of these
    int32_t length = 0;                // if all drafts in flight are right
    int32_t least = 0;                 // if none is
    int32_t most = 0;                  // ever
    std::optional<StepId> sampled_by;  // samples the token at `length`
  };
  struct RunSlot {
    bool failed = false;
    bool penalizes = false;
    uint64_t counts = 0;  // of tokens, if it penalizes
    Token sampled = 0;
    int32_t end = 0;  // the position of `sampled`
  };
  // The state of the groups of slots, at a slot or in a checkpoint, after so many tokens.
  struct State {
    Value value = 0;
    int32_t tokens = 0;
  };

  absl::Status CheckRow(const StepPlan& plan, const StepRow& row);
  absl::Status CheckWrites(const StepPlan& plan);
  RowResult RunRow(const StepPlan& plan, const StepRow& row, const Tables& tables,
                   const Script& script, StepResult& result);

  const StepLimits limits_;
  std::vector<PlannedSlot> planned_;
  std::vector<RunSlot> run_;
  std::deque<StepPlan> in_flight_;
  // The rows' block tables as they were when the step was submitted: [step][row].
  std::deque<std::vector<Tables>> tables_;
  std::vector<std::vector<Value>> kv_;  // [group][num_blocks, block_size]
  std::vector<State> states_;           // of the slots, and then of the checkpoints
  int64_t moves_ = 0;
  StepId last_step_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_SCHEDULER_MODEL_EXECUTOR_TEST_UTIL_H_
