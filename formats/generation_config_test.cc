#include "formats/generation_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "base/strings.h"
#include "formats/gguf_test_util.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

class GenerationConfigTest : public ::testing::Test {
 protected:
  GenerationConfigTest() { std::filesystem::create_directories(folder_); }
  ~GenerationConfigTest() override { std::filesystem::remove_all(folder_); }

  absl::StatusOr<GenerationConfig> With(const std::string& json) {
    WriteFile(folder_ + "/generation_config.json", json);
    return ReadGenerationConfig(folder_);
  }

  const std::string folder_ = StrCat(::testing::TempDir(), "generation_config_test_", getpid());
};

TEST_F(GenerationConfigTest, ReadsWhatIsThere) {
  EXPECT_EQ(ReadGenerationConfig(folder_)->temperature, std::nullopt);
  const auto config = With(R"({"temperature": 0.5, "top_k": 20, "top_p": 0.75, "min_p": null,
      "repetition_penalty": 1.25, "do_sample": true, "eos_token_id": [1, 2]})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->temperature, 0.5f);
  EXPECT_EQ(config->top_k, 20);
  EXPECT_EQ(config->top_p, 0.75f);
  EXPECT_EQ(config->min_p, std::nullopt);
  EXPECT_EQ(config->typical_p, std::nullopt);
  EXPECT_EQ(config->repetition_penalty, 1.25f);
  EXPECT_EQ(config->max_new_tokens, std::nullopt);
}

TEST_F(GenerationConfigTest, NamesAValueThatIsOutOfRange) {
  for (const auto& [json, said] : {std::pair{R"({"temperature": 2.5})", "temperature: is 2.5"},
                                   {R"({"temperature": "hot"})", "temperature: is \"hot\""},
                                   {R"({"top_k": -2})", "top_k: is -2"},
                                   {R"({"top_p": 0})", "top_p: is 0"},
                                   {R"({"repetition_penalty": -1})", "repetition_penalty: is -1"},
                                   {R"({"max_new_tokens": 0})", "max_new_tokens: is 0"},
                                   {"[]", "must be an object"}}) {
    const auto config = With(json);
    ASSERT_FALSE(config.ok()) << json;
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(said));
    EXPECT_THAT(std::string(config.status().message()), HasSubstr("generation_config.json: "));
  }
}

}  // namespace
}  // namespace millrace
