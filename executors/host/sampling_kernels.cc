#include "executors/host/sampling_kernels.h"

#include "executors/host/processor.h"

namespace millrace {

const SamplingKernels& BestSamplingKernels() {
#ifdef MILLRACE_X86
  if (BestInstructionSet() >= InstructionSet::kAvx512) return cpu::avx512::kSampling;
  if (BestInstructionSet() >= InstructionSet::kAvx2) return cpu::avx2::kSampling;
#endif
  return cpu::plain::kSampling;
}

}  // namespace millrace
