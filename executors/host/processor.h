// The processor that this process runs on.
#ifndef MILLRACE_EXECUTORS_HOST_PROCESSOR_H_
#define MILLRACE_EXECUTORS_HOST_PROCESSOR_H_

#include <cstdint>

namespace millrace {

// Each contains the ones before it.
enum class InstructionSet : int8_t {
  kPlain,       // C++ for any machine
  kAvx2,        // AVX2 with FMA and F16C
  kAvx512,      // AVX-512 F, BW, DQ, VL and VNNI
  kAvx512Bf16,  // that with AVX-512 BF16
};

// Returns the largest instruction set that this machine runs.
InstructionSet BestInstructionSet();

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_HOST_PROCESSOR_H_
