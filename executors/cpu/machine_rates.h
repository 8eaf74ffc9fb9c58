// Peak rates of this machine, to which benchmarks compare kernels.
#ifndef MILLRACE_EXECUTORS_CPU_MACHINE_RATES_H_
#define MILLRACE_EXECUTORS_CPU_MACHINE_RATES_H_

#include "executors/host/thread_pool.h"

namespace millrace::cpu {

struct MachineRates {
  double read_gb_s;  // sequential reads from memory, all threads
  // VNNI dot products, all threads; a multiplication and an addition count as one each. 0 without
  // VNNI.
  double int8_gops;
};
MachineRates MeasureMachine(ThreadPool& pool);

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_MACHINE_RATES_H_
