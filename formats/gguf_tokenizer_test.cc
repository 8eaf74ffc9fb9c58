#include "formats/gguf_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "base/strings.h"
#include "formats/gguf_test_util.h"

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

TEST(GgufTokenizerTest, NamesWhatIsWrong) {
  EXPECT_EQ(ErrorOf(Base()), "no error");
  EXPECT_THAT(ErrorOf(GgufWriter()), HasSubstr("key tokenizer.ggml.model is missing"));
  EXPECT_THAT(ErrorOf(GgufWriter().String("tokenizer.ggml.model", "rwkv")),
              HasSubstr("\"rwkv\" is not supported (supported: bert, gemma4, gpt2, llama, t5)"));
  GgufWriter writer = Base();
  EXPECT_THAT(ErrorOf(writer.Uint32("tokenizer.ggml.eos_token_id", 3)),
              HasSubstr("eos_token_id: 3 is outside of 0 to 2"));
  writer = Base();
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
              HasSubstr("9 is outside of 1 to 6"));
  EXPECT_THAT(
      ErrorOf(
          GgufWriter().String("tokenizer.ggml.model", "gpt2").Strings("tokenizer.ggml.tokens", {})),
      HasSubstr("0 tokens"));
}

}  // namespace
}  // namespace millrace
