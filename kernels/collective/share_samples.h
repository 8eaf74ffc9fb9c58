// Tells all ranks what each of them sampled of its share of a step's rows (deal_rows.h).
#ifndef MILLRACE_KERNELS_COLLECTIVE_SHARE_SAMPLES_H_
#define MILLRACE_KERNELS_COLLECTIVE_SHARE_SAMPLES_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/collective/communicator.h"
#include "kernels/sampling/sample.h"

namespace millrace::kernels {

// Leaves in each rank's memory what LaunchSample leaves for all rows, where it ran for the rank's
// own share of them alone. Of a row that several ranks sampled, with equal results, the first one's
// are taken.
struct ShareSamplesArgs {
  Communicator communicator;
  const SampleRow* rows;  // [num_rows]
  SampleResult* results;  // [num_rows], 16-byte aligned; those of the own share are read
  SampleTop* tops;        // [num_rows, kMaxSampledTop], likewise
  int num_rows;
  int share;  // as in DealRowsArgs; share * kSharedSampleBytes is at most slot_bytes
  int32_t* last_tokens;
  int32_t* history;  // may be null
  int64_t history_stride;
};

inline constexpr int kSharedSampleBytes = sizeof(SampleResult) + kMaxSampledTop * sizeof(SampleTop);

// Returns cudaErrorInvalidValue, and launches nothing, if `args` violates the constraints above.
cudaError_t LaunchShareSamples(const ShareSamplesArgs& args, cudaStream_t stream);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_COLLECTIVE_SHARE_SAMPLES_H_
