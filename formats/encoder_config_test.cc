// Folders and GGUF files of encoders: their values, and refusals by name.
#include "formats/encoder_config.h"

#include <unistd.h>

#include <filesystem>
#include <string>

#include "base/strings.h"
#include "formats/family_twins.h"
#include "formats/gguf_test_util.h"
#include "formats/open_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

class EncoderConfigTest : public ::testing::Test {
 protected:
  EncoderConfigTest() { WriteTwinFolder(twin_, folder_); }
  ~EncoderConfigTest() override { std::filesystem::remove_all(folder_); }

  // With one file of the folder replaced.
  absl::StatusOr<ModelConfig> With(const std::string& name, const std::string& text) {
    WriteFile(folder_ + "/" + name, text);
    return Open(folder_);
  }
  static absl::StatusOr<ModelConfig> Open(const std::string& path) {
    absl::StatusOr<OpenedModel> model = OpenModel(path);
    if (!model.ok()) return model.status();
    return model->config;
  }

  const FamilyTwin twin_ = EncoderTwins()[0];
  const std::string folder_ = StrCat(::testing::TempDir(), "encoder_config_test_", getpid());
};

TEST_F(EncoderConfigTest, AFolderAndAGgufFileSayTheSame) {
  const std::string gguf = folder_ + "/model.gguf";
  WriteTwinGguf(twin_, gguf);
  for (const std::string& path : {folder_, gguf}) {
    SCOPED_TRACE(path);
    const absl::StatusOr<ModelConfig> config = Open(path);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->architecture, "bert");
    EXPECT_EQ(config->layers[0].softmax().head_size, 16);
    EXPECT_EQ(config->context_length, 64);
    EXPECT_FLOAT_EQ(static_cast<float>(config->norm_epsilon), 1e-5f);
    ASSERT_TRUE(config->encoder.has_value());
    EXPECT_EQ(config->encoder->positions, 64);
    EXPECT_EQ(config->encoder->token_types, 2);
    EXPECT_EQ(config->encoder->pooling, Pooling::kMean);
    EXPECT_TRUE(config->encoder->normalize);
  }
}

TEST_F(EncoderConfigTest, SentenceTransformersSaysHowLongATextMayBe) {
  const auto config = With("sentence_bert_config.json", R"({"max_seq_length": 20})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->context_length, 20);
  EXPECT_EQ(config->encoder->positions, 64);
}

TEST_F(EncoderConfigTest, AFolderWithoutModulesIsPooledByItsMean) {
  std::filesystem::remove(folder_ + "/modules.json");
  const auto config = Open(folder_);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->encoder->pooling, Pooling::kMean);
  EXPECT_FALSE(config->encoder->normalize);
}

TEST_F(EncoderConfigTest, WhatWouldChangeTheNumbersIsRefusedByName) {
  const auto refused = [&](const std::string& name, const std::string& text) {
    const absl::Status status = With(name, text).status();
    EXPECT_FALSE(status.ok()) << text;
    WriteTwinFolder(twin_, folder_);
    return std::string(status.message());
  };
  const auto config = [&](const char* patch) {
    Json changed = twin_.config;
    changed.merge_patch(Json::parse(patch));
    return refused("config.json", changed.dump());
  };
  EXPECT_THAT(config(R"({"hidden_act": "relu"})"), HasSubstr("hidden_act"));
  EXPECT_THAT(config(R"({"position_embedding_type": "relative_key"})"),
              HasSubstr("position_embedding_type"));
  EXPECT_THAT(config(R"({"is_decoder": true})"), HasSubstr("is_decoder"));
  EXPECT_THAT(config(R"({"num_attention_heads": 5})"), HasSubstr("num_attention_heads: 5"));
  EXPECT_THAT(config(R"({"type_vocab_size": 3})"), HasSubstr("token_type_embeddings"));
  EXPECT_THAT(refused("modules.json", "{}"), HasSubstr("must be a list of modules"));
  EXPECT_THAT(refused("modules.json", R"([{"type": "a.Transformer", "path": ""},
      {"type": "a.Pooling", "path": "1_Pooling"}, {"type": "a.Dense", "path": "2_Dense"}])"),
              HasSubstr("Transformer, Pooling, Dense"));
  EXPECT_THAT(refused("modules.json", R"([{"type": "a.Transformer", "path": ""},
      {"type": "a.Pooling", "path": "../1_Pooling"}])"),
              HasSubstr("\"../1_Pooling\", must be a folder's name"));
  EXPECT_THAT(refused("1_Pooling/config.json", R"({"pooling_mode_max_tokens": true})"),
              HasSubstr("\"max_tokens\" is not supported"));
  EXPECT_THAT(refused("1_Pooling/config.json",
                      R"({"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": true})"),
              HasSubstr("is not supported"));
}

TEST_F(EncoderConfigTest, NoTextIsPutBeforeAText) {
  const auto message = [&](const char* json) {
    return std::string(With("config_sentence_transformers.json", json).status().message());
  };
  // sentence-transformers adds those that a caller asks for, or the default.
  for (const char* json : {R"({"__version__": {}})",
                           R"({"prompts": {"query": "Find: "}, "default_prompt_name": null})",
                           R"({"prompts": {"query": ""}, "default_prompt_name": "query"})"}) {
    EXPECT_EQ(message(json), "") << json;
  }
  EXPECT_EQ(
      message(R"({"prompts": {"query": "Find: "}, "default_prompt_name": "query"})"),
      "config_sentence_transformers.json: default_prompt_name: \"query\" is not supported: its "
      "prompt would stand before every text (supported: null, or an empty prompt's)");
  EXPECT_THAT(message(R"({"default_prompt_name": "query"})"), HasSubstr("default_prompt_name"));
  EXPECT_THAT(message(R"({"default_prompt_name": 1})"), HasSubstr("default_prompt_name: is 1"));
  EXPECT_THAT(message(R"({"prompts": [], "default_prompt_name": "a"})"),
              HasSubstr("prompts: is []"));
}

TEST_F(EncoderConfigTest, TextsInLowerCaseNeedATokenizerThatDoesSo) {
  WriteFile(folder_ + "/tokenizer_config.json", R"({"do_lower_case": true})");
  const char* const lower = R"({"max_seq_length": 20, "do_lower_case": true})";
  EXPECT_TRUE(With("sentence_bert_config.json", lower).ok());
  WriteFile(folder_ + "/tokenizer_config.json", R"({"do_lower_case": false})");
  EXPECT_THAT(std::string(With("sentence_bert_config.json", lower).status().message()),
              HasSubstr("do_lower_case"));
}

TEST_F(EncoderConfigTest, AGgufFileIsRefusedByItsKeys) {
  const std::string path = folder_ + "/refused.gguf";
  const auto message = [&](const GgufWriter& writer) {
    writer.Write(path);
    return std::string(Open(path).status().message());
  };
  const auto writer = [] {
    GgufWriter writer;
    writer.String("general.architecture", "bert")
        .Uint32("bert.block_count", 1)
        .Uint32("bert.context_length", 8)
        .Uint32("bert.embedding_length", 32)
        .Uint32("bert.feed_forward_length", 32)
        .Uint32("bert.attention.head_count", 2)
        .Float32("bert.attention.layer_norm_epsilon", 1e-12f);
    return writer;
  };
  EXPECT_THAT(message(writer()), HasSubstr("tensor token_embd.weight: is missing"));
  EXPECT_THAT(message(writer().Uint32("bert.pooling_type", 4)), HasSubstr("bert.pooling_type: 4"));
  EXPECT_THAT(message(writer().Bool("bert.attention.causal", true)),
              HasSubstr("bert.attention.causal"));
}

}  // namespace
}  // namespace millrace
