// Compiled with AVX2 switched on: nothing here may instantiate code that other files share.
#include "executors/cpu/avx2_math.h"
#include "executors/cpu/kernel_sets.h"

namespace millrace::cpu::avx2 {
#include "executors/cpu/elementwise_simd.inc"
}  // namespace millrace::cpu::avx2
