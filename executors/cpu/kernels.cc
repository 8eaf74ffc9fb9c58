#include "executors/cpu/kernels.h"

#include "executors/cpu/kernel_sets.h"

namespace millrace::cpu {

const Kernels& PlainKernels() {
  static constexpr Kernels kKernels = {
      .name = "plain",
      .gemm_f32 = plain::GemmF32,
      .gemm_f16 = plain::GemmF16,
      .gemm_q8_0 = plain::GemmQ8,
      .gemm_q4_1 = plain::GemmQ4,
      .attention = plain::Attention,
      .store = plain::Store,
      .norm = plain::Norm,
      .gate = plain::Gate,
      .rope = plain::Rope,
      .append = plain::Append,
      .maximum = plain::Maximum,
      .exp_sum = plain::ExpSum,
      .select = plain::Select,
      .count_above = plain::CountAbove,
  };
  return kKernels;
}

const Kernels* Avx512Kernels() {
#ifdef MILLRACE_AVX512
  static constexpr Kernels kKernels = {
      .name = "avx512-vnni",
      .gemm_f32 = avx512::GemmF32,
      .gemm_f16 = avx512::GemmF16,
      .gemm_q8_0 = avx512::GemmQ8,
      .gemm_q4_1 = avx512::GemmQ4,
      .attention = avx512::Attention,
      .store = avx512::Store,
      .norm = avx512::Norm,
      .gate = avx512::Gate,
      .rope = avx512::Rope,
      .append = avx512::Append,
      .maximum = avx512::Maximum,
      .exp_sum = avx512::ExpSum,
      .select = avx512::Select,
      .count_above = avx512::CountAbove,
  };
  static const bool supported =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vnni");
  return supported ? &kKernels : nullptr;
#else
  return nullptr;
#endif
}

const Kernels& BestKernels() {
  const Kernels* best = Avx512Kernels();
  return best != nullptr ? *best : PlainKernels();
}

}  // namespace millrace::cpu
