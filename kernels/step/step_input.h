// Expands a step's input, which the host sends in one copy, into the arrays that kernels read.
//
// The arrays have fixed addresses, so that a captured graph finds each step's values there.
#ifndef MILLRACE_KERNELS_STEP_STEP_INPUT_H_
#define MILLRACE_KERNELS_STEP_STEP_INPUT_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/sampling/sample.h"
#include "kernels/step/step_layout.h"

namespace millrace::kernels {

// The packed input. A row may have no tokens.
struct PackedStep {
  const int32_t* words;  // on the device; step_layout.h says where each array lies
  StepCounts counts;
  int tokens;

  // StepArrays::masks_wanted of the set that the step's masks lie in.
  int mask_set = 0;
  uint32_t masks_wanted = 0;
};

// The device arrays. Entries of slots that a step does not mention keep their values.
struct StepArrays {
  int32_t* tokens;        // [tokens]
  int32_t* positions;     // [tokens]
  int32_t* slots;         // [tokens]
  int32_t* row_first;     // [rows + 1]
  int32_t* row_start;     // [rows]
  int32_t* row_slot;      // [rows]
  int32_t* wanted_token;  // [wanted]
  SampleRow* samples;     // [wanted]

  int32_t* block_tables;  // [groups][slots][table_stride]: a row for each slot in each group
  int64_t table_stride;
  SlotSampling* sampling;  // [slots]
  TokenBias* biases;       // [slots][biases_stride]
  int64_t biases_stride;
  int32_t* history;  // [slots][history_stride]: tokens by position, of slots with penalties
  int64_t history_stride;
  const int32_t* last_tokens;        // [slots]: the token sampled last
  uint32_t* masks_wanted = nullptr;  // [sets]: MaskArrival's; null: there are none
};

// Expands `step`, but for its copies, into `arrays`. Reads last_tokens as the previous step left
// them. Each element is written by one thread, and nothing that is written is read.
cudaError_t LaunchStepInput(const PackedStep& step, const StepArrays& arrays, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_STEP_STEP_INPUT_H_
