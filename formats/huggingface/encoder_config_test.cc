// Folders and GGUF files of encoders: their values, and refusals by name.
#include "formats/huggingface/encoder_config.h"

#include <unistd.h>

#include <filesystem>
#include <string>

#include "base/strings.h"
#include "formats/open_model.h"
#include "formats/twins/family_twins.h"
#include "formats/twins/gguf_test_util.h"
#include "formats/twins/hf_test_util.h"
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
      {"type": "a.Pooling", "path": "1_Pooling"}, {"type": "a.LSTM", "path": "2_LSTM"}])"),
              HasSubstr("Transformer, Pooling, LSTM"));
  EXPECT_THAT(refused("modules.json", R"([{"type": "a.Transformer", "path": ""},
      {"type": "a.Pooling", "path": "../1_Pooling"}])"),
              HasSubstr("\"../1_Pooling\", must be a folder's name"));
  EXPECT_THAT(refused("1_Pooling/config.json", R"({"pooling_mode_max_tokens": true})"),
              HasSubstr("\"max_tokens\" is not supported"));
  EXPECT_THAT(refused("1_Pooling/config.json",
                      R"({"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": true})"),
              HasSubstr("is not supported"));
}

TEST_F(EncoderConfigTest, TheDefaultPromptStandsBeforeEveryText) {
  const auto prompt = [&](const char* json) {
    const auto config = With("config_sentence_transformers.json", json);
    return config.ok() ? config->embedding_prompt : std::string(config.status().message());
  };
  EXPECT_EQ(prompt(R"({"__version__": {}})"), "");
  EXPECT_EQ(prompt(R"({"prompts": {"query": "Find: "}, "default_prompt_name": null})"), "");
  EXPECT_EQ(prompt(R"({"prompts": {"query": ""}, "default_prompt_name": "query"})"), "");
  EXPECT_EQ(prompt(R"({"prompts": {"query": "Find: "}, "default_prompt_name": "query"})"),
            "Find: ");
  EXPECT_EQ(prompt(R"({"default_prompt_name": "query"})"),
            "config_sentence_transformers.json: default_prompt_name: \"query\" is not the name of "
            "one of prompts");
  EXPECT_THAT(prompt(R"({"default_prompt_name": 1})"), HasSubstr("default_prompt_name: is 1"));
  EXPECT_THAT(prompt(R"({"prompts": [], "default_prompt_name": "a"})"),
              HasSubstr("prompts: is []"));
  // Tokens of a prompt that are not pooled.
  WriteFile(folder_ + "/1_Pooling/config.json",
            R"({"pooling_mode": "mean", "include_prompt": false})");
  EXPECT_THAT(prompt(R"({"prompts": {"query": "Find: "}, "default_prompt_name": "query"})"),
              HasSubstr("include_prompt: false is not supported"));
  EXPECT_EQ(prompt("{}"), "");
}

// sentence-transformers wrote a flag for each kind of pooling before its version 5.4.
TEST_F(EncoderConfigTest, PoolingIsAFlagOrAWord) {
  const auto pooling = [&](const char* json) -> absl::StatusOr<Pooling> {
    const auto config = With("1_Pooling/config.json", json);
    if (!config.ok()) return config.status();
    return config->encoder->pooling;
  };
  EXPECT_EQ(*pooling(R"({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false})"),
            Pooling::kFirst);
  EXPECT_EQ(*pooling(R"({"pooling_mode": "cls", "include_prompt": true})"), Pooling::kFirst);
  EXPECT_EQ(*pooling(R"({"pooling_mode": "mean", "pooling_mode_cls_token": true})"),
            Pooling::kMean);
  EXPECT_EQ(*pooling(R"({"pooling_mode": ["cls"]})"), Pooling::kFirst);
  EXPECT_EQ(*pooling(R"({"word_embedding_dimension": 64})"), Pooling::kMean);
  for (const char* other : {R"({"pooling_mode": "weightedmean"})",
                            R"({"pooling_mode": ["cls", "mean"]})", R"({"pooling_mode": "max"})"}) {
    EXPECT_THAT(std::string(pooling(other).status().message()),
                HasSubstr("1_Pooling/config.json: pooling_mode: "))
        << other;
  }
}

TEST_F(EncoderConfigTest, TheTokenizerSaysHowLongATextMayBeWhereNothingElseDoes) {
  const char* const no_length = R"({"transformer_task": "feature-extraction"})";
  ASSERT_TRUE(With("sentence_bert_config.json", no_length).ok());
  const auto length = [&](const char* json) {
    return With("tokenizer_config.json", json)->context_length;
  };
  EXPECT_EQ(length(R"({"model_max_length": 20})"), 20);
  EXPECT_EQ(length(R"({"model_max_length": 1000000000000000019884624838656})"), 64);
  EXPECT_EQ(length("{}"), 64);
  WriteFile(folder_ + "/sentence_bert_config.json", R"({"max_seq_length": 30})");
  EXPECT_EQ(length(R"({"model_max_length": 20})"), 30);
  std::filesystem::remove(folder_ + "/sentence_bert_config.json");
  EXPECT_EQ(length(R"({"model_max_length": 20})"), 20);
}

TEST_F(EncoderConfigTest, DenseLayersFollowThePooling) {
  std::filesystem::create_directories(folder_ + "/2_Dense");
  WriteFile(folder_ + "/modules.json", R"([{"type": "a.Transformer", "path": ""},
      {"type": "a.Pooling", "path": "1_Pooling"}, {"type": "a.Dense", "path": "2_Dense"},
      {"type": "a.Normalize", "path": "3_Normalize"}])");
  SafetensorsWriter()
      .Tensor("linear.weight", TensorType::kF32, {2, 64}, std::vector<float>(128))
      .Tensor("linear.bias", TensorType::kF32, {2}, {1, 2})
      .Write(folder_ + "/2_Dense/model.safetensors");
  const auto dense = [&](const std::string& fields) {
    return With("2_Dense/config.json",
                StrCat(R"({"in_features": 64, "out_features": 2)", fields, "}"));
  };
  const auto config = dense(R"(, "activation_function": "torch.nn.modules.linear.Identity")");
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_EQ(config->encoder->dense.size(), 1);
  EXPECT_EQ(config->encoder->dense[0].out, 2);
  EXPECT_EQ(config->encoder->dense[0].function, HeadFunction::kIdentity);
  EXPECT_TRUE(config->encoder->dense[0].bias);
  EXPECT_TRUE(config->encoder->normalize);
  EXPECT_EQ(dense("")->encoder->dense[0].function, HeadFunction::kTanh);
  const auto message = [&](const std::string& fields) {
    return std::string(dense(fields).status().message());
  };
  EXPECT_THAT(message(R"(, "activation_function": "my.Function")"),
              HasSubstr("activation_function: \"my.Function\" is not supported"));
  EXPECT_THAT(message(R"(, "bias": false)"), HasSubstr("dense.0.bias"));
  EXPECT_THAT(message(R"(, "use_residual": true)"), HasSubstr("use_residual"));
  EXPECT_THAT(std::string(With("2_Dense/config.json", R"({"in_features": 32, "out_features": 2})")
                              .status()
                              .message()),
              HasSubstr("in_features: 32, must be 64"));
  EXPECT_TRUE(dense("").ok());
  std::filesystem::remove(folder_ + "/2_Dense/model.safetensors");
  EXPECT_THAT(message(""), HasSubstr("2_Dense has no model.safetensors"));
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
  EXPECT_THAT(message(writer().Uint32("bert.pooling_type", 4)),
              HasSubstr("bert.pooling_type: is 4, ranks, but the file has neither cls.weight"));
  EXPECT_THAT(message(writer().Uint32("bert.pooling_type", 3)), HasSubstr("bert.pooling_type: 3"));
  EXPECT_THAT(
      message(writer().Uint32("bert.pooling_type", 4).String("bert.classifier.activation", "relu")),
      HasSubstr("bert.classifier.activation: \"relu\" is not supported (supported: tanh"));
  EXPECT_THAT(
      message(writer().Uint32("bert.pooling_type", 4).Uint32("bert.classifier.pooling_type", 3)),
      HasSubstr("bert.classifier.pooling_type: 3 is not supported"));
  EXPECT_THAT(message(writer().Bool("bert.attention.causal", true)),
              HasSubstr("bert.attention.causal"));
}

}  // namespace
}  // namespace millrace
