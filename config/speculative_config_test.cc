#include "config/speculative_config.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

std::string Refusal(std::string_view json) {
  return std::string(ParseSpeculativeConfig(json).status().message());
}

TEST(SpeculativeConfigTest, LooksUpByDefault) {
  for (const std::string_view json : {"", "{}", R"({"method": "ngram"})"}) {
    const auto config = ParseSpeculativeConfig(json);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_TRUE(config->lookup);
    EXPECT_EQ(config->num_speculative_tokens, 8);
    EXPECT_EQ(config->prompt_lookup_min, 3);
  }
}

TEST(SpeculativeConfigTest, ReadsWhatVllmReads) {
  const auto config = ParseSpeculativeConfig(
      R"({"method":"suffix","num_speculative_tokens":5,"prompt_lookup_min":2,"prompt_lookup_max":4})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->lookup);
  EXPECT_EQ(config->num_speculative_tokens, 5);
  EXPECT_EQ(config->prompt_lookup_min, 2);
  EXPECT_FALSE(ParseSpeculativeConfig(R"({"method": "none"})")->lookup);
}

TEST(SpeculativeConfigTest, RefusesByName) {
  EXPECT_EQ(Refusal(R"({"method": "eagle3"})"),
            "method is \"eagle3\"; allowed: ngram, suffix, none (drafts of another model are not "
            "supported)");
  EXPECT_EQ(Refusal(R"({"model": "org/draft"})"),
            "there is no key \"model\"; allowed: method, num_speculative_tokens, "
            "prompt_lookup_min, prompt_lookup_max");
  EXPECT_EQ(Refusal(R"({"num_speculative_tokens": 17})"),
            "num_speculative_tokens is \"17\"; allowed: 1 to 16");
  EXPECT_EQ(Refusal(R"({"num_speculative_tokens": 0})"),
            "num_speculative_tokens is \"0\"; allowed: 1 to 16");
  EXPECT_EQ(Refusal(R"({"prompt_lookup_min": [3]})"),
            "prompt_lookup_min is \"\"; allowed: 1 to 1024");
  EXPECT_EQ(Refusal(R"({"prompt_lookup_min": 5, "prompt_lookup_max": 4})"),
            "prompt_lookup_max is 4; allowed: at least prompt_lookup_min, 5");
  for (const std::string_view json : {"ngram", "[]", "{", "5"}) {
    EXPECT_THAT(Refusal(json), HasSubstr("expected a JSON object")) << json;
  }
}

}  // namespace
}  // namespace millrace
