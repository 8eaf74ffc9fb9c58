#include "kernels/step/step_input.h"

#include "kernels/launch.cuh"

namespace millrace::kernels {
namespace {

constexpr int kThreads = 256;

__device__ void ExpandRow(const PackedStep& step, const StepLayout& at, const StepArrays& out,
                          int row) {
  const int32_t* const in = step.words;
  const int first = in[at.row_first + row];
  const int count = in[at.row_first + row + 1] - first;
  const int start = in[at.row_start + row];
  const int slot = in[at.row_slot + row];
  const int source = in[at.row_source + row];
  for (int i = threadIdx.x; i < count; i += kThreads) {
    out.tokens[first + i] =
        source == StepLayout::kSampled ? out.last_tokens[slot] : in[at.host_tokens + source + i];
    out.positions[first + i] = start + i;
    out.slots[first + i] = slot;
  }
  if (threadIdx.x == 0) {
    out.row_first[row] = first;
    out.row_start[row] = start;
    out.row_slot[row] = slot;
    if (row == step.counts.rows - 1) out.row_first[step.counts.rows] = step.tokens;
  }
}

__global__ void __launch_bounds__(kThreads) StepInput(PackedStep step, StepArrays out) {
  AwaitPredecessor();
  const int32_t* const in = step.words;
  const StepCounts& n = step.counts;
  const StepLayout at(n);
  for (int row = blockIdx.x; row < n.rows; row += gridDim.x) ExpandRow(step, at, out, row);
  const int thread = blockIdx.x * kThreads + threadIdx.x;
  const int threads = gridDim.x * kThreads;
  if (thread == 0 && out.masks_wanted != nullptr) {
    out.masks_wanted[step.mask_set] = step.masks_wanted;
  }
  for (int i = thread; i < n.wanted; i += threads) {
    const int row = in[at.wanted_row + i];
    const int token = in[at.wanted_token + i];
    out.wanted_token[i] = token;
    out.samples[i] = {.slot = in[at.row_slot + row],
                      .position = in[at.row_start + row] + token - in[at.row_first + row] + 1,
                      .target = in[at.wanted_target + i],
                      .mask = in[at.wanted_mask + i]};
  }
  for (int i = thread; i < n.appends; i += threads) {
    const int32_t* append = in + at.appends + kAppendWords * i;
    out.block_tables[append[0] * out.table_stride + append[1]] = append[2];
  }
  for (int i = thread; i < n.biases; i += threads) {
    const int32_t* bias = in + at.biases + kBiasWords * i;
    out.biases[bias[0] * out.biases_stride + bias[1]] = {.token = bias[2],
                                                         .bias = __int_as_float(bias[3])};
  }
  for (int i = thread; i < n.history; i += threads) {
    const int32_t* known = in + at.history + kHistoryWords * i;
    out.history[known[0] * out.history_stride + known[1]] = known[2];
  }
  for (int i = thread; i < n.starts * kSamplingWords; i += threads) {
    const int slot = in[at.start_slots + i / kSamplingWords];
    reinterpret_cast<int32_t*>(out.sampling + slot)[i % kSamplingWords] = in[at.starts + i];
  }
}

}  // namespace

cudaError_t LaunchStepInput(const PackedStep& step, const StepArrays& arrays, cudaStream_t stream) {
  const StepCounts& n = step.counts;
  if (n.rows < 0 || step.tokens < 0 || step.words == nullptr) {
    return cudaErrorInvalidValue;
  }
  const int work = n.rows > n.starts ? n.rows : n.starts;
  const int grid = work < 1 ? 1 : work > 256 ? 256 : work;
  return LaunchDependent(StepInput, grid, kThreads, 0, stream, step, arrays);
}

}  // namespace millrace::kernels
