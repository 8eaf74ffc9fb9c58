// Compiled with AVX-512 switched on: nothing here may instantiate code that other files share.
#include "executors/host/avx512_math.h"
#include "executors/host/sampling_kernels.h"

namespace millrace::cpu::avx512 {
#include "executors/host/sampling_simd.inc"
}  // namespace millrace::cpu::avx512
