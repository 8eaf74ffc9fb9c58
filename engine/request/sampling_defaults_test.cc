#include "engine/request/sampling_defaults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(SamplingDefaultsTest, AModelsWishesBecomeARequests) {
  const SamplingDefaults defaults = *MakeSamplingDefaults({.temperature = 0.5f,
                                                           .top_k = 20,
                                                           .top_p = 0.75f,
                                                           .min_p = 0.125f,
                                                           .typical_p = 0.25f,
                                                           .repetition_penalty = 1.5f,
                                                           .max_new_tokens = 30,
                                                           .not_followed = {}});
  GenerateRequest request;
  Apply(defaults, &request);
  EXPECT_EQ(request.temperature, 0.5f);
  EXPECT_EQ(request.top_k, 20);
  EXPECT_EQ(request.top_p, 0.75f);
  EXPECT_EQ(request.min_p, 0.125f);
  EXPECT_EQ(request.typical_p, 0.25f);
  EXPECT_EQ(request.repetition_penalty, 1.5f);
  EXPECT_EQ(request.default_max_tokens, 30);
  EXPECT_EQ(request.max_tokens, std::nullopt);
  EXPECT_THAT(NamedDefaults(defaults),
              ElementsAre(Pair("temperature", "0.5"), Pair("top_k", "20"), Pair("top_p", "0.75"),
                          Pair("min_p", "0.125"), Pair("typical_p", "0.25"),
                          Pair("repetition_penalty", "1.5"), Pair("max_tokens", "30")));
}

TEST(SamplingDefaultsTest, WithoutWishesARequestBeginsAsVllmsDo) {
  const SamplingDefaults defaults = *MakeSamplingDefaults({});
  GenerateRequest request;
  Apply(defaults, &request);
  const GenerateRequest own;
  EXPECT_EQ(request.temperature, own.temperature);
  EXPECT_EQ(request.top_k, own.top_k);
  EXPECT_EQ(request.top_p, own.top_p);
  EXPECT_EQ(request.min_p, own.min_p);
  EXPECT_EQ(request.typical_p, own.typical_p);
  EXPECT_EQ(request.repetition_penalty, own.repetition_penalty);
  EXPECT_EQ(request.default_max_tokens, std::nullopt);
  EXPECT_THAT(NamedDefaults(defaults), IsEmpty());
}

TEST(SamplingDefaultsTest, AValueThatNoRequestMayHaveIsNamed) {
  GenerationConfig hot, negative, none, penalty;
  hot.temperature = 2.5f;
  negative.top_k = -2;
  none.top_p = 0.0f;
  penalty.repetition_penalty = -1.0f;
  for (const auto& [config, message] : {std::pair{hot, "temperature: is 2.5"},
                                        {negative, "top_k: is -2"},
                                        {none, "top_p: is 0"},
                                        {penalty, "repetition_penalty: is -1"}}) {
    const auto defaults = MakeSamplingDefaults(config);
    ASSERT_EQ(defaults.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(defaults.status().message()),
                HasSubstr(std::string("generation_config.json: ") + message));
  }
}

}  // namespace
}  // namespace millrace
