// What the files of CpuOps share: ops are handed their own kinds of activations and inputs.
#ifndef MILLRACE_EXECUTORS_CPU_OP_UTIL_H_
#define MILLRACE_EXECUTORS_CPU_OP_UTIL_H_

#include "executors/cpu/activation.h"
#include "executors/cpu/step_input.h"
#include "executors/ops.h"

namespace millrace::cpu {

inline const CpuActivation& Cast(const Activation& activation) {
  return static_cast<const CpuActivation&>(*activation);
}
inline CpuActivation& Cast(Activation& activation) {
  return static_cast<CpuActivation&>(*activation);
}
inline const CpuStepInput& Cast(const StepInput& input) {
  return static_cast<const CpuStepInput&>(input);
}

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_OP_UTIL_H_
