// The families' twins in shapes that the GPU runs, and how far from the CPU's its numbers may be.
#ifndef MILLRACE_EXECUTORS_CUDA_FAMILY_TWINS_TEST_UTIL_H_
#define MILLRACE_EXECUTORS_CUDA_FAMILY_TWINS_TEST_UTIL_H_

#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "executors/models/family_reference.h"
#include "gtest/gtest.h"

namespace millrace::cuda {

// Returns the tolerance in nats, slightly above the distance on an H200. The twins' weights are so
// wide that BF16's rounding shows, more so with more layers (SmolLM3 has five) and where it sends a
// token to other experts.
inline double Tolerance(const std::string& twin) {
  // The twins' biases are as large as what they are added to. Transformers in bfloat16 differs from
  // itself in float32 by 0.8, 2.4 and 3.1 with llama's, smollm3's and granite's.
  for (const std::string_view biases : {"_biases", "_biased"}) {
    if (twin.ends_with(biases)) return 2 * Tolerance(twin.substr(0, twin.size() - biases.size()));
  }
  // Logits are doubled.
  if (twin == "granite" || twin == "granitemoeshared" || twin == "granitehybrid") return 1.1;
  if (twin == "smollm3" || twin == "mixtral") return 0.65;
  for (const char* wider :
       {"qwen2", "phi4_short", "qwen2moe_dense", "granitemoe", "gpt_oss_mxfp4"}) {
    if (twin == wider) return 0.4;
  }
  return 0.32;
}

// Returns the twin with heads of 64, which the GPU's attention requires, of 128 in gated delta
// rules, and with states of 128 in Mamba-2. It has four times as many rotary pairs, so each of
// LongRoPE's factors is repeated four times.
inline Json Widened(Json config) {
  config["hidden_size"] = 256;
  for (const char* head : {"linear_key_head_dim", "linear_value_head_dim"}) {
    if (config.contains(head)) config[head] = 128;
  }
  if (config.contains("head_dim") && config["head_dim"].is_number()) config["head_dim"] = 64;
  for (const char* head : {"mamba_d_head", "mamba_head_dim"}) {
    if (config.contains(head) && config[head].is_number()) {
      config[head] = 4 * config[head].get<int>();
    }
  }
  for (const char* state : {"mamba_d_state", "ssm_state_size"}) {
    if (config.contains(state)) config[state] = 128;
  }
  return config;
}

inline Json WithFactorsOfFour(Json change) {
  for (const char* name : {"short_factor", "long_factor"}) {
    if (!change.contains("rope_scaling") || !change["rope_scaling"].is_object() ||
        !change["rope_scaling"].contains(name)) {
      continue;
    }
    Json factors = Json::array();
    for (const Json& factor : change["rope_scaling"][name]) {
      for (int i = 0; i < 4; ++i) factors.push_back(factor);
    }
    change["rope_scaling"][name] = factors;
  }
  return change;
}

// Returns the root mean square of the differences.
inline double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(squares / static_cast<double>(a.size()));
}

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_FAMILY_TWINS_TEST_UTIL_H_
