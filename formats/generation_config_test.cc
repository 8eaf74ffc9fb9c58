#include "formats/generation_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "base/strings.h"
#include "formats/twins/gguf_test_util.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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

TEST_F(GenerationConfigTest, NamesWhatIsNotFollowedAndMatters) {
  const auto config = With(R"({"no_repeat_ngram_size": 3, "num_beams": 4, "suppress_tokens": [1],
      "bad_words_ids": [[2, 3]], "min_new_tokens": 2, "epsilon_cutoff": 0.001,
      "stop_strings": "END", "forced_bos_token_id": 0, "temperature": 1, "top_k": 5})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(
      config->not_followed,
      ElementsAre("bad_words_ids", "epsilon_cutoff", "forced_bos_token_id", "min_new_tokens",
                  "no_repeat_ngram_size", "num_beams", "stop_strings", "suppress_tokens"));
  const auto neutral = With(R"({"no_repeat_ngram_size": 0, "num_beams": 1, "suppress_tokens": [],
      "bad_words_ids": null, "min_new_tokens": 0, "epsilon_cutoff": 0.0, "guidance_scale": 1.0,
      "stop_strings": null, "do_sample": true, "max_length": 4096, "transformers_version": "4"})");
  ASSERT_TRUE(neutral.ok()) << neutral.status();
  EXPECT_THAT(neutral->not_followed, IsEmpty());
}

TEST_F(GenerationConfigTest, NamesAValueOfAnotherType) {
  for (const auto& [json, said] :
       {std::pair{R"({"temperature": "hot"})", "temperature: is \"hot\""},
        {R"({"top_k": 0.5})", "top_k: is 0.5"},
        {R"({"top_p": 1e39})", "top_p: is 1e+39"},
        {R"({"max_new_tokens": 0})", "max_new_tokens: is 0"},
        {"[]", "must be an object"}}) {
    const auto config = With(json);
    ASSERT_FALSE(config.ok()) << json;
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(said));
    EXPECT_THAT(std::string(config.status().message()), HasSubstr("generation_config.json: "));
  }
}

TEST_F(GenerationConfigTest, AGgufFileMayHaveItsOwn) {
  const std::string path = folder_ + "/model.gguf";
  GgufWriter().String("general.architecture", "llama").Write(path);
  EXPECT_EQ(ReadGgufSampling(path)->temperature, std::nullopt);

  GgufWriter full;
  full.String("general.architecture", "llama");
  full.Float32("general.sampling.temp", 0.5f);
  full.Uint32("general.sampling.top_k", 20);
  full.Float32("general.sampling.top_p", 0.75f);
  full.Float32("general.sampling.min_p", 0.25f);
  full.Float32("general.sampling.penalty_repeat", 1.5f);
  full.Uint32("general.sampling.mirostat", 2);
  full.Write(path);
  const auto config = ReadGgufSampling(path);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->temperature, 0.5f);
  EXPECT_EQ(config->top_k, 20);
  EXPECT_EQ(config->top_p, 0.75f);
  EXPECT_EQ(config->min_p, 0.25f);
  EXPECT_EQ(config->repetition_penalty, 1.5f);
  EXPECT_THAT(config->not_followed, ElementsAre("general.sampling.mirostat"));
}

}  // namespace
}  // namespace millrace
