#include "formats/tokenizers/gguf_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <string_view>

#include "base/strings.h"
#include "formats/twins/gguf_test_util.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(const GgufWriter& writer) {
  const std::string path = StrCat(::testing::TempDir(), "gguf_tokenizer_test_", getpid(), ".gguf");
  writer.Write(path);
  const absl::StatusOr<GgufFile> file = GgufFile::Open(path);
  unlink(path.c_str());
  EXPECT_TRUE(file.ok()) << file.status();
  const absl::StatusOr<GgufTokenizer> config = ReadGgufTokenizer(*file);
  return config.ok() ? "no error" : std::string(config.status().message());
}

GgufWriter Base() {
  GgufWriter writer;
  writer.String("tokenizer.ggml.model", "gpt2").Strings("tokenizer.ggml.tokens", {"a", "b", "ab"});
  writer.Int32s("tokenizer.ggml.token_type", {1, 1, 1}).Strings("tokenizer.ggml.merges", {"a b"});
  return writer;
}

GgufTokenizer Read(const GgufWriter& writer, std::string* pre) {
  const std::string path = StrCat(::testing::TempDir(), "gguf_tokenizer_test_", getpid(), ".gguf");
  writer.Write(path);
  const absl::StatusOr<GgufFile> file = GgufFile::Open(path);
  unlink(path.c_str());
  EXPECT_TRUE(file.ok()) << file.status();
  absl::StatusOr<GgufTokenizer> config = ReadGgufTokenizer(*file);
  EXPECT_TRUE(config.ok()) << config.status();
  if (!config.ok()) return {};
  *pre = config->pre;  // the other views end with the file
  return {.kind = config->kind,
          .fim_prefix = config->fim_prefix,
          .fim_suffix = config->fim_suffix,
          .fim_middle = config->fim_middle,
          .add_bos = config->add_bos,
          .lowercase = config->lowercase,
          .strip_accents = config->strip_accents};
}

TEST(GgufTokenizerTest, PreGivesDefaults) {
  const auto read = [](std::string_view pre, bool has_bos, std::optional<bool> add_bos) {
    GgufWriter writer = Base();
    writer.String("tokenizer.ggml.pre", std::string(pre));
    if (has_bos) writer.Uint32("tokenizer.ggml.bos_token_id", 0);
    if (add_bos) writer.Bool("tokenizer.ggml.add_bos_token", *add_bos);
    std::string unused;
    return Read(writer, &unused);
  };
  EXPECT_TRUE(read("llama-bpe", true, std::nullopt).add_bos);
  EXPECT_TRUE(read("tekken", true, std::nullopt).add_bos);
  EXPECT_FALSE(read("tekken", false, std::nullopt).add_bos);
  EXPECT_FALSE(read("tekken", true, false).add_bos);
  EXPECT_FALSE(read("qwen2", true, std::nullopt).add_bos);
  EXPECT_TRUE(read("qwen2", true, true).add_bos);
  EXPECT_EQ(read("qwen2", false, std::nullopt).kind, TokenizerKind::kGpt2);
  for (const char* spaced : {"gemma4", "granite-embed-multi-311m", "sarvam-moe"}) {
    EXPECT_EQ(read(spaced, false, std::nullopt).kind, TokenizerKind::kGemma4) << spaced;
  }
}

TEST(GgufTokenizerTest, ReadsTheTokensToFillInUnderEitherName) {
  std::string pre;
  GgufWriter writer = Base();
  EXPECT_EQ(Read(writer, &pre).fim_prefix, std::nullopt);
  writer.Uint32("tokenizer.ggml.prefix_token_id", 2).Uint32("tokenizer.ggml.suffix_token_id", 1);
  writer.Uint32("tokenizer.ggml.fim_pre_token_id", 0).Uint32("tokenizer.ggml.fim_mid_token_id", 2);
  const GgufTokenizer config = Read(writer, &pre);
  EXPECT_EQ(config.fim_prefix, 0);  // the newer name's
  EXPECT_EQ(config.fim_suffix, 1);
  EXPECT_EQ(config.fim_middle, 2);
}

TEST(GgufTokenizerTest, ReadsTheNormalizer) {
  std::string pre;
  GgufWriter writer = Base();
  GgufTokenizer config = Read(writer, &pre);
  EXPECT_FALSE(config.lowercase || config.strip_accents);
  EXPECT_EQ(pre, "default");
  config = Read(writer.Bool("tokenizer.ggml.normalizer.lowercase", true), &pre);
  EXPECT_TRUE(config.lowercase && config.strip_accents);
  config = Read(writer.Bool("tokenizer.ggml.normalizer.strip_accents", false), &pre);
  EXPECT_TRUE(config.lowercase && !config.strip_accents);
}

TEST(GgufTokenizerTest, NamesWhatIsWrong) {
  EXPECT_EQ(ErrorOf(Base()), "no error");
  EXPECT_THAT(ErrorOf(GgufWriter()), HasSubstr("key tokenizer.ggml.model is missing"));
  EXPECT_THAT(ErrorOf(GgufWriter().String("tokenizer.ggml.model", "rwkv")),
              HasSubstr("\"rwkv\" is not supported (supported: bert, gemma4, gpt2, llama, t5, "
                        "whitespace)"));
  GgufWriter writer = Base();
  EXPECT_THAT(ErrorOf(writer.Bool("tokenizer.ggml.add_bos_token", true)),
              HasSubstr("there is no bos_token_id"));
  writer = Base();
  EXPECT_THAT(ErrorOf(writer.Bool("tokenizer.ggml.add_space_prefix", true)),
              HasSubstr("add_space_prefix"));
  writer = Base();
  EXPECT_THAT(ErrorOf(writer.String("tokenizer.chat_template", std::string((1 << 20) + 1, 'x'))),
              HasSubstr("chat_template: 1048577 bytes"));

  GgufWriter types;
  types.String("tokenizer.ggml.model", "gpt2").Strings("tokenizer.ggml.tokens", {"a", "b"});
  GgufWriter few = types;
  EXPECT_THAT(ErrorOf(few.Int32s("tokenizer.ggml.token_type", {1})),
              HasSubstr("1 types for 2 tokens"));
  GgufWriter wrong = types;
  EXPECT_THAT(ErrorOf(wrong.Int32s("tokenizer.ggml.token_type", {1, 9})),
              HasSubstr("9 is outside of 0 to 6"));
  EXPECT_THAT(
      ErrorOf(
          GgufWriter().String("tokenizer.ggml.model", "gpt2").Strings("tokenizer.ggml.tokens", {})),
      HasSubstr("0 tokens"));
}

}  // namespace
}  // namespace millrace
