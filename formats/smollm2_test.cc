// The readers on the default model's own file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "formats/gguf/gguf.h"
#include "formats/gguf_model.h"
#include "formats/tokenizers/gguf_tokenizer.h"
#include "formats/twins/gguf_test_util.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

TEST(SmolLm2Test, Gguf) {
  const absl::StatusOr<GgufFile> file = OpenGgufModel(DefaultModelPath());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->tensors().size(), 272u);
  EXPECT_EQ(file->Strings("tokenizer.ggml.merges")->size(), 48900u);
  const TensorInfo* down = file->FindTensor("blk.0.ffn_down.weight");
  ASSERT_NE(down, nullptr);
  EXPECT_THAT(down->shape, ElementsAre(576, 1536));
  EXPECT_EQ(down->type, TensorType::kQ4_1);
  EXPECT_EQ(down->offset, 31868992u);
  EXPECT_EQ(down->bytes, 576u * 1536 / 32 * 20);
}

TEST(SmolLm2Test, ModelConfig) {
  const absl::StatusOr<GgufFile> file = OpenGgufModel(DefaultModelPath());
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::StatusOr<ModelConfig> config = ReadModelConfig(*file);
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_EQ(config->num_layers(), 30);
  EXPECT_EQ(config->hidden_size, 576);
  EXPECT_EQ(config->layers[29].ffn_size(), 1536);
  const SoftmaxAttention& attention = config->layers[29].softmax();
  EXPECT_EQ(attention.heads, 9);
  EXPECT_EQ(attention.kv_heads, 3);
  EXPECT_EQ(attention.head_size, 64);
  ASSERT_TRUE(attention.rope.has_value());
  EXPECT_EQ(attention.rope->dimensions, 64);
  EXPECT_EQ(attention.rope->theta, 100000);
  EXPECT_TRUE(attention.rope->factors.empty());
  EXPECT_EQ(config->vocab_size, 49152);
  EXPECT_EQ(config->context_length, 8192);
  EXPECT_TRUE(config->tied_embeddings);
}

TEST(SmolLm2Test, GgufTokenizer) {
  const absl::StatusOr<GgufFile> file = OpenGgufModel(DefaultModelPath());
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::StatusOr<GgufTokenizer> config = ReadGgufTokenizer(*file);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->pre, "smollm");
  EXPECT_EQ(config->tokens.size(), 49152u);
  EXPECT_EQ(config->tokens[1], "<|im_start|>");
  EXPECT_EQ(config->types[1], TokenType::kControl);
  EXPECT_EQ(config->types[17], TokenType::kNormal);
  EXPECT_EQ(config->merges[0], "Ġ t");
  EXPECT_EQ(config->bos, 1);
  EXPECT_EQ(config->eos, 2);
  EXPECT_EQ(config->eot, std::nullopt);
  EXPECT_EQ(config->pad, 2);
  EXPECT_FALSE(config->add_bos);
  EXPECT_THAT(std::string(config->chat_template), StartsWith("{% for message in messages %}"));
}

}  // namespace
}  // namespace millrace
