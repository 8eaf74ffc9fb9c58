// The function of recurrent layers' steps.
#ifndef MILLRACE_EXECUTORS_CPU_SOFTPLUS_H_
#define MILLRACE_EXECUTORS_CPU_SOFTPLUS_H_

#include <cmath>

namespace millrace::cpu {

// Returns log(1 + exp(x)). Above 20 the 1 is below a float's precision.
inline float Softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_SOFTPLUS_H_
