// The input of a step of a model that runs on this process's threads.
#ifndef MILLRACE_EXECUTORS_HOST_STEP_INPUT_H_
#define MILLRACE_EXECUTORS_HOST_STEP_INPUT_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "executors/host/sampler.h"
#include "executors/ops.h"
#include "plan/step_plan.h"

namespace millrace {

// Rows are consecutive: row r's tokens are [first_token, first_token + num_tokens).
struct CpuStepInput : StepInput {
  struct Row {
    int first_token;
    int num_tokens;
    // By group of the state; of a group of slots, empty.
    absl::Span<const std::vector<BlockId>> block_tables;
    SlotId slot = 0;  // where the states of recurrent layers lie
    // The last tokens, which are guesses: states of recurrent layers stay those of the tokens
    // before them (HostModel::AcceptDrafts).
    int num_draft = 0;
  };
  std::vector<Row> rows;
  std::vector<Token> tokens;
  std::vector<int32_t> positions;      // of the tokens
  std::vector<int32_t> types;          // of the tokens, 0 or 1 (StepRow::second_type)
  std::vector<int> row_of;             // of the tokens
  std::vector<int> wanted;             // tokens whose logits are wanted
  std::vector<SampleRequest> samples;  // one for each of `wanted`
};

// A step that is run before the first request: one token, at the beginning of block 0 and in slot
// 0, whose logits are wanted unless the model is an encoder. What it leaves there is overwritten
// before it is read.
struct WarmUpStep {
  explicit WarmUpStep(const StepLimits& limits) : tables(limits.state.num_groups(), {0}) {
    input.rows = {{.first_token = 0, .num_tokens = 1, .block_tables = tables}};
    input.tokens = {0};
    input.positions = {0};
    input.types = {0};
    input.row_of = {0};
    if (limits.embedding_size > 0) return;
    input.wanted = {0};
    input.samples = {{.params = &greedy, .position = 1, .target = std::nullopt}};
  }
  WarmUpStep(const WarmUpStep&) = delete;
  WarmUpStep& operator=(const WarmUpStep&) = delete;

  const std::vector<std::vector<BlockId>> tables;
  const SamplingParams greedy{.temperature = 0};
  CpuStepInput input;
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_HOST_STEP_INPUT_H_
