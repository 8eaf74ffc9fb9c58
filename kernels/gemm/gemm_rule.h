// Chooses the config of our own kernels for a product that was not measured: rules made from
// measurements of Llama-3-8B's shapes on an H200.
#ifndef MILLRACE_KERNELS_GEMM_GEMM_RULE_H_
#define MILLRACE_KERNELS_GEMM_GEMM_RULE_H_

#include <cstdint>
#include <optional>

#include "kernels/gemm/gemm_desc.h"

namespace millrace::kernels {

// Returns the config of our own kernel for up to `tokens` tokens on a Hopper GPU with `sms` SMs, by
// heuristics; nothing where cuBLASLt is faster.
std::optional<GemmConfig> HeuristicConfig(const GemmDesc& desc, int64_t tokens, int sms);

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_GEMM_GEMM_RULE_H_
