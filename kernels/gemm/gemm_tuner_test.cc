#include "kernels/gemm/gemm_tuner.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/gemm/linear_plan.h"
#include "kernels/gemm/linear_test_util.h"

namespace millrace::kernels {
namespace {

constexpr int64_t kRows = 1536, kStride = 2560, kMost = 1024;

// A measured plan gives the bits of the rules' plan at every number of tokens, with and without
// the capacity to compute more rows.
TEST(GemmTunerTest, TunesWithoutChangingABit) {
  for (const Form& form : kForms) {
    if (form.weight == WeightScaling::kBlock) continue;
    SCOPED_TRACE(form.name);
    Problem problem(form, kRows, kStride, kMost, kRows);
    const GemmDesc desc = form.Desc(kRows, kStride);
    LinearPlanner by_rule(Library(), {.max_tokens = kMost}),
        tuned(Library(), {.max_tokens = kMost});
    std::string error;
    ASSERT_FALSE(tuned.Knows(desc));
    const auto ranges = TuneAndLearn(tuned, desc, {problem.Args(nullptr, 1).weight.data}, &error);
    ASSERT_TRUE(ranges.has_value()) << error;
    EXPECT_TRUE(tuned.Knows(desc));
    EXPECT_EQ(ParseGemmRanges(ToString(*ranges)), ranges);
    const LinearPlan* const plan = Plan(&tuned, desc);
    const LinearPlan* const rule = Plan(&by_rule, desc);
    ASSERT_TRUE(plan != nullptr && rule != nullptr);
    std::vector<uint8_t> expected, got;
    for (const int64_t tokens : {1,   2,   8,   9,   16,  17,  33,  48,  64,  65,  96,
                                 100, 129, 160, 200, 256, 257, 400, 512, 700, 1024}) {
      if (form.output == Type::kF32 && tokens > 512) break;
      ASSERT_EQ(problem.Run(rule, tokens, &expected), cudaSuccess);
      ASSERT_EQ(problem.Run(plan, tokens, &got), cudaSuccess);
      EXPECT_TRUE(got == expected) << tokens << " tokens";
      if (LinearCapacity(tokens) > kMost) continue;
      ASSERT_EQ(problem.Run(plan, tokens, &got, LinearCapacity(tokens)), cudaSuccess);
      EXPECT_TRUE(got == expected) << tokens << " tokens, with capacity for more";
    }
    EXPECT_TRUE(problem.GuardsIntact());
  }
}

// A gated linear is measured with its gate.
TEST(GemmTunerTest, TunesAGatedLinear) {
  const Form& form = kForms[2];
  Problem problem(form, kRows, kStride, 16, kRows);
  GemmDesc desc = form.Desc(kRows, kStride);
  desc.epilogue = Epilogue::kGate;
  LinearPlanner planner(Library(), {.max_tokens = 256});
  std::string error;
  EXPECT_TRUE(
      TuneAndLearn(planner, desc, {problem.Args(nullptr, 1).weight.data}, &error).has_value())
      << error;
}

TEST(GemmTunerTest, TellsOtherBits) {
  const Form& form = kForms[0];
  const GemmDesc desc = form.Desc(kRows, 8192);
  Problem problem(form, kRows, 8192, 64, kRows);
  const std::vector<const void*> weights = {problem.Args(nullptr, 1).weight.data};
  std::string error;
  // A config that splits K: the first one that cuBLASLt proposes without exactness.
  LinearOptions any = {.exact = false, .max_tokens = 64};
  GemmRanges split;
  for (const Algorithm& algorithm : ProposeAlgorithms(Library(), desc, any, 64, 32)) {
    if (algorithm.config.split_k > 1) {
      split = {{.tokens = 64, .config = {.kernel = algorithm.config}}};
      break;
    }
  }
  ASSERT_FALSE(split.empty());
  LinearPlanner exact(Library(), {.max_tokens = 64}), not_exact(Library(), any);
  EXPECT_FALSE(exact.Learn(desc, split));
  EXPECT_TRUE(not_exact.Learn(desc, split));
  const auto tuner = GemmTuner::Make(Library(), any, desc, weights, &error);
  ASSERT_NE(tuner, nullptr) << error;
  EXPECT_FALSE(tuner->HasReferenceBits(split));
  const auto again = GemmTuner::Make(Library(), exact.options(), desc, weights, &error);
  ASSERT_NE(again, nullptr) << error;
  const auto ranges = again->Tune(&error);
  ASSERT_TRUE(ranges.has_value()) << error;
  EXPECT_TRUE(again->HasReferenceBits(*ranges));
}

TEST(GemmTunerTest, LearnsNothingThatCannotRun) {
  const GemmDesc desc = kForms[0].Desc(kRows, kStride);
  LinearPlanner planner(Library(), {.max_tokens = 64});
  for (const char* text : {"64=skinny:7,132", "64=wide:80,32,1,16,132", "64=wide:64,64,1,1,132",
                           "64=wide:64,64,1,16,0", "64=block:64,64,16,132",
                           "16=skinny:7,132 64=wide:64,32,1,16,132"}) {
    const auto ranges = ParseGemmRanges(text);
    ASSERT_TRUE(ranges.has_value()) << text;
    EXPECT_FALSE(planner.Learn(desc, *ranges)) << text;
  }
  EXPECT_FALSE(planner.Knows(desc));
  EXPECT_TRUE(planner.Learn(desc, *ParseGemmRanges("16=skinny:7,132 64=wide:64,64,1,16,132")));
  EXPECT_TRUE(planner.Knows(desc));
}

}  // namespace
}  // namespace millrace::kernels
