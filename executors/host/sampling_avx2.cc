// Compiled with AVX2 switched on: nothing here may instantiate code that other files share.
#include "executors/host/avx2_math.h"
#include "executors/host/sampling_kernels.h"

namespace millrace::cpu::avx2 {
#include "executors/host/sampling_simd.inc"
}  // namespace millrace::cpu::avx2
