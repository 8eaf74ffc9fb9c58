// Expands a step's input, which the host sends in one copy, into the arrays that kernels read.
//
// The arrays have fixed addresses, so that a captured graph finds each step's values there.
#ifndef MILLRACE_KERNELS_STEP_STEP_INPUT_H_
#define MILLRACE_KERNELS_STEP_STEP_INPUT_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/sampling/sample.h"

namespace millrace::kernels {

// The packed input: consecutive arrays of 32-bit words.
//   row_first [rows + 1]   a row's first token in the step; the last entry is `tokens`
//   row_start [rows]       the position of that token in the sequence
//   row_slot [rows]
//   row_source [rows]      index of the row's first token in host_tokens, or kSampled
//   host_tokens [host_tokens]
//   wanted_token [wanted]  index in the step of a token whose logits are wanted
//   wanted_row [wanted]
//   wanted_target [wanted] the token to score, or kSample
//   wanted_mask [wanted]   the row of the step's masks, or kUnmasked
//   appends [appends][3]   slot, index in its block table, block
//   biases [biases][4]     slot, index in its list, token, bias (a float's bits)
//   history [history][3]   slot, position, token
//   start_slots [starts]
//   starts [starts][sizeof(SlotSampling) / 4]
struct PackedStep {
  const int32_t* words;  // on the device
  int rows;
  int tokens;
  int host_tokens;
  int wanted;
  int appends;
  int biases;
  int history;
  int starts;

  // StepArrays::masks_wanted of the set that the step's masks lie in.
  int mask_set = 0;
  uint32_t masks_wanted = 0;

  static constexpr int32_t kSampled = -1;
  static constexpr int32_t kSample = -1;
  static constexpr int32_t kUnmasked = -1;
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

  int32_t* block_tables;  // [slots][table_stride]
  int64_t table_stride;
  SlotSampling* sampling;  // [slots]
  TokenBias* biases;       // [slots][biases_stride]
  int64_t biases_stride;
  int32_t* history;  // [slots][history_stride]: tokens by position, of slots with penalties
  int64_t history_stride;
  const int32_t* last_tokens;        // [slots]: the token sampled last
  uint32_t* masks_wanted = nullptr;  // [sets]: MaskArrival's; null: there are none
};

// Expands `step` into `arrays`. Reads last_tokens as the previous step left them. Each element is
// written by one thread, and nothing that is written is read.
cudaError_t LaunchStepInput(const PackedStep& step, const StepArrays& arrays, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_STEP_STEP_INPUT_H_
