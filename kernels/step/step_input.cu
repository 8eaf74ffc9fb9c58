#include "kernels/step/step_input.h"

#include "kernels/launch.cuh"

namespace millrace::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kSamplingWords = sizeof(SlotSampling) / sizeof(int32_t);

// The parts of PackedStep::words.
struct Parts {
  __device__ explicit Parts(const PackedStep& step)
      : row_first(step.words),
        row_start(row_first + step.rows + 1),
        row_slot(row_start + step.rows),
        row_source(row_slot + step.rows),
        host_tokens(row_source + step.rows),
        wanted_token(host_tokens + step.host_tokens),
        wanted_row(wanted_token + step.wanted),
        wanted_target(wanted_row + step.wanted),
        wanted_mask(wanted_target + step.wanted),
        appends(wanted_mask + step.wanted),
        biases(appends + 3 * step.appends),
        history(biases + 4 * step.biases),
        start_slots(history + 3 * step.history),
        starts(start_slots + step.starts) {}
  const int32_t* row_first;
  const int32_t* row_start;
  const int32_t* row_slot;
  const int32_t* row_source;
  const int32_t* host_tokens;
  const int32_t* wanted_token;
  const int32_t* wanted_row;
  const int32_t* wanted_target;
  const int32_t* wanted_mask;
  const int32_t* appends;
  const int32_t* biases;
  const int32_t* history;
  const int32_t* start_slots;
  const int32_t* starts;
};

__device__ void ExpandRow(const PackedStep& step, const Parts& in, const StepArrays& out, int row) {
  const int first = in.row_first[row];
  const int count = in.row_first[row + 1] - first;
  const int start = in.row_start[row];
  const int slot = in.row_slot[row];
  const int source = in.row_source[row];
  for (int i = threadIdx.x; i < count; i += kThreads) {
    out.tokens[first + i] =
        source == PackedStep::kSampled ? out.last_tokens[slot] : in.host_tokens[source + i];
    out.positions[first + i] = start + i;
    out.slots[first + i] = slot;
  }
  if (threadIdx.x == 0) {
    out.row_first[row] = first;
    out.row_start[row] = start;
    out.row_slot[row] = slot;
    if (row == step.rows - 1) out.row_first[step.rows] = step.tokens;
  }
}

__global__ void __launch_bounds__(kThreads) StepInput(PackedStep step, StepArrays out) {
  AwaitPredecessor();
  const Parts in(step);
  for (int row = blockIdx.x; row < step.rows; row += gridDim.x) ExpandRow(step, in, out, row);
  const int thread = blockIdx.x * kThreads + threadIdx.x;
  const int threads = gridDim.x * kThreads;
  if (thread == 0 && out.masks_wanted != nullptr) {
    out.masks_wanted[step.mask_set] = step.masks_wanted;
  }
  for (int i = thread; i < step.wanted; i += threads) {
    const int row = in.wanted_row[i];
    const int token = in.wanted_token[i];
    out.wanted_token[i] = token;
    out.samples[i] = {.slot = in.row_slot[row],
                      .position = in.row_start[row] + token - in.row_first[row] + 1,
                      .target = in.wanted_target[i],
                      .mask = in.wanted_mask[i]};
  }
  for (int i = thread; i < step.appends; i += threads) {
    const int32_t* append = in.appends + 3 * i;
    out.block_tables[append[0] * out.table_stride + append[1]] = append[2];
  }
  for (int i = thread; i < step.biases; i += threads) {
    const int32_t* bias = in.biases + 4 * i;
    out.biases[bias[0] * out.biases_stride + bias[1]] = {.token = bias[2],
                                                         .bias = __int_as_float(bias[3])};
  }
  for (int i = thread; i < step.history; i += threads) {
    const int32_t* known = in.history + 3 * i;
    out.history[known[0] * out.history_stride + known[1]] = known[2];
  }
  for (int i = thread; i < step.starts * kSamplingWords; i += threads) {
    const int slot = in.start_slots[i / kSamplingWords];
    reinterpret_cast<int32_t*>(out.sampling + slot)[i % kSamplingWords] = in.starts[i];
  }
}

}  // namespace

cudaError_t LaunchStepInput(const PackedStep& step, const StepArrays& arrays, cudaStream_t stream) {
  if (step.rows < 0 || step.tokens < step.rows || step.words == nullptr) {
    return cudaErrorInvalidValue;
  }
  const int work = step.rows > step.starts ? step.rows : step.starts;
  const int grid = work < 1 ? 1 : work > 256 ? 256 : work;
  return LaunchDependent(StepInput, grid, kThreads, 0, stream, step, arrays);
}

}  // namespace millrace::kernels
