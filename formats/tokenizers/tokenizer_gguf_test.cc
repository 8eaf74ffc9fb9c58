// The frames around texts and pairs of texts that GGUF files ask for.
#include "formats/tokenizers/tokenizer_gguf.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <vector>

#include "base/strings.h"
#include "formats/gguf/gguf.h"
#include "formats/tokenizers/gguf_tokenizer.h"
#include "formats/twins/gguf_test_util.h"

namespace millrace {
namespace {

struct Frames {
  std::string single;  // ids, and T for the text
  std::string pair;    // ids, and A and B for the texts
};

Frames FramesOf(const GgufWriter& writer) {
  const std::string path = StrCat(::testing::TempDir(), "tokenizer_gguf_test_", getpid(), ".gguf");
  writer.Write(path);
  const absl::StatusOr<GgufFile> file = GgufFile::Open(path);
  unlink(path.c_str());
  EXPECT_TRUE(file.ok()) << file.status();
  const absl::StatusOr<GgufTokenizer> gguf = ReadGgufTokenizer(*file);
  EXPECT_TRUE(gguf.ok()) << gguf.status();
  const absl::StatusOr<TokenizerSpec> spec = MakeTokenizerSpec(*gguf);
  if (!spec.ok()) return {std::string(spec.status().message()), ""};
  Frames frames;
  for (const std::optional<int32_t>& token : spec->frame) {
    frames.single += token.has_value() ? StrCat(*token, " ") : "T ";
  }
  for (const PairPart& part : spec->pair_frame) {
    EXPECT_FALSE(part.second_type);
    frames.pair += part.kind == PairPart::Kind::kToken       ? StrCat(part.token, " ")
                   : part.kind == PairPart::Kind::kFirstText ? "A "
                                                             : "B ";
  }
  return frames;
}

GgufWriter WordPieces(int tokens) {
  std::vector<std::string> words;
  for (int i = 0; i < tokens; ++i) words.push_back(StrCat("\xe2\x96\x81w", i));
  GgufWriter writer;
  writer.String("tokenizer.ggml.model", "bert").Strings("tokenizer.ggml.tokens", words);
  return writer;
}

TEST(TokenizerGgufTest, WordPiecesBeginWithClsOrWithBos) {
  const auto with = [](const std::vector<std::pair<const char*, uint32_t>>& ids, int tokens = 8) {
    GgufWriter writer = WordPieces(tokens);
    for (const auto& [name, id] : ids) writer.Uint32(StrCat("tokenizer.ggml.", name), id);
    return FramesOf(writer);
  };
  const Frames old =
      with({{"unknown_token_id", 0}, {"cls_token_id", 1}, {"seperator_token_id", 2}});
  EXPECT_EQ(old.single, "1 T 2 ");
  EXPECT_EQ(old.pair, "1 A 2 B 2 ");
  const Frames now = with({{"unknown_token_id", 0},
                           {"cls_token_id", 1},
                           {"seperator_token_id", 2},
                           {"bos_token_id", 5}});
  EXPECT_EQ(now.single, "5 T 2 ");
  EXPECT_EQ(now.pair, "5 A 2 B 2 ");
  EXPECT_EQ(with({}, 103).single, "101 T 102 ");  // BERT's own
  EXPECT_EQ(with({}, 102).single,
            "tokenizer.ggml: a bert tokenizer needs unknown_token_id, bos_token_id or "
            "cls_token_id, and seperator_token_id");
}

TEST(TokenizerGgufTest, OtherPairsHaveTheTokensThatTheFileAdds) {
  const auto pair = [](bool bos, bool eos, bool sep) {
    GgufWriter writer;
    writer.String("tokenizer.ggml.model", "gpt2")
        .Strings("tokenizer.ggml.tokens", {"a", "b", "<s>", "</s>", "<sep>"})
        .Strings("tokenizer.ggml.merges", {})
        .Uint32("tokenizer.ggml.bos_token_id", 2)
        .Uint32("tokenizer.ggml.eos_token_id", 3)
        .Uint32("tokenizer.ggml.seperator_token_id", 4)
        .Bool("tokenizer.ggml.add_bos_token", bos)
        .Bool("tokenizer.ggml.add_eos_token", eos)
        .Bool("tokenizer.ggml.add_sep_token", sep);
    return FramesOf(writer).pair;
  };
  EXPECT_EQ(pair(true, true, true), "2 A 3 4 B 3 ");
  EXPECT_EQ(pair(true, true, false), "2 A 3 B 3 ");
  EXPECT_EQ(pair(false, false, true), "A 4 B ");
}

}  // namespace
}  // namespace millrace
