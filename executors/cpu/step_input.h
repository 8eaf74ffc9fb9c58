// What a step asks of a model that this process's own threads run.
#ifndef MILLRACE_EXECUTORS_CPU_STEP_INPUT_H_
#define MILLRACE_EXECUTORS_CPU_STEP_INPUT_H_

#include <cstdint>
#include <vector>

#include "executors/cpu/sampler.h"
#include "executors/ops.h"
#include "scheduler/step_plan.h"

namespace millrace::cpu {

// Rows lie one after the other: row r's tokens are [first_token, first_token + num_tokens).
struct CpuStepInput : StepInput {
  struct Row {
    int first_token;
    int num_tokens;
    const BlockId* block_table;
  };
  std::vector<Row> rows;
  std::vector<Token> tokens;
  std::vector<int32_t> positions;      // of the tokens
  std::vector<int> row_of;             // of the tokens
  std::vector<int> wanted;             // tokens whose logits are wanted
  std::vector<SampleRequest> samples;  // what of them; as many
};

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_STEP_INPUT_H_
