#include "executors/host/processor.h"

#ifdef MILLRACE_X86
#include <cpuid.h>
#endif

namespace millrace {
namespace {

#ifdef MILLRACE_X86
// Not every compiler's __builtin_cpu_supports knows F16C. The registers are as wide as AVX2's, for
// which it asks the operating system, too.
bool HasF16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

InstructionSet Find() {
#ifdef MILLRACE_X86
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !HasF16c()) {
    return InstructionSet::kPlain;
  }
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl") ||
      !__builtin_cpu_supports("avx512vnni")) {
    return InstructionSet::kAvx2;
  }
  return __builtin_cpu_supports("avx512bf16") ? InstructionSet::kAvx512Bf16
                                              : InstructionSet::kAvx512;
#else
  return InstructionSet::kPlain;
#endif
}

}  // namespace

InstructionSet BestInstructionSet() {
  static const InstructionSet best = Find();
  return best;
}

}  // namespace millrace
