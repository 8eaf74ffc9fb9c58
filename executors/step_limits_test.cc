#include "executors/step_limits.h"

#include "gtest/gtest.h"

namespace millrace {
namespace {

TEST(StepLimitsTest, HaveTheExpertsOfTheLargestMixture) {
  ModelConfig config;
  config.context_length = 100;
  config.layers.resize(3);
  config.layers[0].feed_forward = GatedFeedForward{.size = 64};
  absl::StatusOr<StepLimits> limits = MakeStepLimits(config, CommonSpec{});
  ASSERT_TRUE(limits.ok()) << limits.status();
  EXPECT_EQ(limits->num_experts, 0);
  EXPECT_EQ(limits->experts_a_token, 0);

  config.layers[1].feed_forward =
      ExpertsFeedForward{.size = 64, .router = {.experts = 128, .chosen = 8}};
  config.layers[2].feed_forward =
      ExpertsFeedForward{.size = 64, .router = {.experts = 16, .chosen = 2}};
  limits = MakeStepLimits(config, CommonSpec{});
  ASSERT_TRUE(limits.ok()) << limits.status();
  EXPECT_EQ(limits->num_experts, 128);
  EXPECT_EQ(limits->experts_a_token, 8);
}

}  // namespace
}  // namespace millrace
