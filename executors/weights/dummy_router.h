// Routers of dummy weights that load some experts more than others.
#ifndef MILLRACE_EXECUTORS_WEIGHTS_DUMMY_ROUTER_H_
#define MILLRACE_EXECUTORS_WEIGHTS_DUMMY_ROUTER_H_

#include <cstdint>
#include <vector>

namespace millrace {

// Returns a factor for each of a router's rows, [experts], whose elements are drawn uniformly
// around 0. With them the loads of the experts, each expert's share of the tokens, are about
// lognormal: the logarithms' deviation is 1, and no expert has more than 0.4 of the tokens. Without
// them, or if a token goes through more than 0.4 of the experts, all loads are about equal. Which
// expert has which load is a function of the seed.
//
// Recorded loads of DeepSeek-V3 are nearest to a lognormal distribution (github.com/deepseek-ai/
// DeepEP, pull request 393). Its deviation is 1.0 for Qwen3-30B-A3B on mixed text, whose entropy is
// 0.111 ln 128 below equal loads' entropy, and 1.2 on code (the handbook of github.com/
// mcp-tool-shop-org/gpu-container, "Routing De-risk"): a lognormal distribution's is deviation^2 /
// 2 below.
//
// The factors do not depend on how large the router's inputs are, nor on what makes scores of
// logits: an expert is chosen if its logit is among the largest, which is more often so of a row
// with a larger factor.
std::vector<float> SkewedRouterRows(int experts, int chosen, uint64_t seed);

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_WEIGHTS_DUMMY_ROUTER_H_
