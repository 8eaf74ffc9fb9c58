// What this machine can do, for benchmarks to hold kernels against.
#ifndef MILLRACE_EXECUTORS_CPU_MACHINE_RATES_H_
#define MILLRACE_EXECUTORS_CPU_MACHINE_RATES_H_

#include "executors/cpu/thread_pool.h"

namespace millrace::cpu {

struct MachineRates {
  double read_gb_s;  // sequential reads from memory, all threads
  double int8_gops;  // VNNI dot products (a multiplication or an addition is one), all threads; 0
                     // without VNNI
};
MachineRates MeasureMachine(ThreadPool& pool);

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_MACHINE_RATES_H_
