// Compiled with AVX2 switched on: nothing here may instantiate code that other files share.
#include "executors/cpu/kernels/kernel_sets.h"
#include "executors/host/avx2_math.h"

namespace millrace::cpu::avx2 {
#include "executors/cpu/kernels/recurrent_simd.inc"
}  // namespace millrace::cpu::avx2
