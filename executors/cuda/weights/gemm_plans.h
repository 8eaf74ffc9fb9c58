// Chooses the plans of a model's linears. Products unknown to the planner take plans measured by an
// earlier start (gemm_cache.h), or are measured now.
#ifndef MILLRACE_EXECUTORS_CUDA_WEIGHTS_GEMM_PLANS_H_
#define MILLRACE_EXECUTORS_CUDA_WEIGHTS_GEMM_PLANS_H_

#include <vector>

#include "kernels/gemm/gemm_desc.h"
#include "kernels/gemm/linear.h"

namespace millrace::cuda {

// A product, and the weights in device memory that it is used with.
struct GemmUse {
  kernels::GemmDesc desc;
  std::vector<const void*> weights;
};

// Adds a use, or adds its weights to the existing use of the same product.
void AddUse(const kernels::GemmDesc& desc, const void* weight, std::vector<GemmUse>* uses);

// Makes the planner learn all uses. A product that cannot be measured or kept costs a log line, and
// the planner then applies its rules. Runs on the calling thread's device, which must be idle.
void LearnPlans(const std::vector<GemmUse>& uses, kernels::LinearPlanner& planner);

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_WEIGHTS_GEMM_PLANS_H_
