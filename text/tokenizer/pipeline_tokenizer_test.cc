#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "formats/tokenizers/tokenizer_gguf.h"
#include "formats/twins/gguf_test_util.h"
#include "text/detokenizer.h"
#include "text/tokenizer/pipeline_tokenizer.h"
#include "text/tokenizer/subword_model.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr EncodeOptions kParsed = {.add_special = true, .parse_special = true};

absl::StatusOr<std::unique_ptr<const Tokenizer>> MakeTokenizer(const GgufTokenizer& config) {
  const absl::StatusOr<TokenizerSpec> spec = MakeTokenizerSpec(config);
  if (!spec.ok()) return spec.status();
  return PipelineTokenizer::Create(*spec);
}

std::unique_ptr<const Tokenizer> FromModel(const std::string& path) {
  const absl::StatusOr<GgufFile> file = GgufFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  const absl::StatusOr<GgufTokenizer> config = ReadGgufTokenizer(*file);
  EXPECT_TRUE(config.ok()) << config.status();
  absl::StatusOr<std::unique_ptr<const Tokenizer>> tokenizer = MakeTokenizer(*config);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);  // the file is closed now, and nothing may still look into it
}

// A vocabulary of few tokens, to look at single rules.
struct SmallVocabulary {
  std::vector<std::string_view> tokens = {"<eos>", "<user>", "a",   "b", "c",
                                          "ab",    "bc",     "abc", "Ġ", "é"};
  std::vector<TokenType> types = {TokenType::kControl, TokenType::kUserDefined, TokenType::kNormal,
                                  TokenType::kNormal,  TokenType::kNormal,      TokenType::kNormal,
                                  TokenType::kNormal,  TokenType::kNormal,      TokenType::kNormal,
                                  TokenType::kNormal};
  std::vector<std::string_view> merges = {"b c", "a b", "a bc"};
  GgufTokenizer config;

  absl::StatusOr<std::unique_ptr<const Tokenizer>> Make() {
    config.tokens = tokens;
    config.types = types;
    config.merges = merges;
    if (config.pre.empty()) config.pre = "gpt-2";
    return MakeTokenizer(config);
  }
};

std::vector<Token> Ids(const Tokenizer& tokenizer, std::string_view text,
                       EncodeOptions options = {}) {
  const absl::StatusOr<std::vector<Token>> ids = tokenizer.Encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.ok() ? *ids : std::vector<Token>();
}

TEST(PipelineTokenizerTest, MergesByRankThenFromTheLeft) {
  const auto tokenizer = *SmallVocabulary().Make();
  EXPECT_THAT(Ids(*tokenizer, "abc"), ElementsAre(7));  // b c first, then a bc
  EXPECT_THAT(Ids(*tokenizer, "abab"), ElementsAre(5, 5));
  EXPECT_THAT(Ids(*tokenizer, "aab"), ElementsAre(2, 5));
  EXPECT_THAT(Ids(*tokenizer, "cb a"), ElementsAre(4, 3, 8, 2));
  EXPECT_THAT(Ids(*tokenizer, ""), IsEmpty());
}

TEST(PipelineTokenizerTest, DropsBytesWithoutAToken) {
  const auto tokenizer = *SmallVocabulary().Make();
  EXPECT_THAT(Ids(*tokenizer, "axb"),
              ElementsAre(5));  // as Hugging Face: the neighbours then merge
  EXPECT_THAT(Ids(*tokenizer, "xyz"), IsEmpty());
}

TEST(PipelineTokenizerTest, ParsesSpecialTextWhereAsked) {
  const auto tokenizer = *SmallVocabulary().Make();
  EXPECT_THAT(Ids(*tokenizer, "a<eos>b<user>", kParsed), ElementsAre(2, 0, 3, 1));
  EXPECT_THAT(Ids(*tokenizer, "a<eos>b<user>"),
              ElementsAre(2, 3, 1));  // its letters have no tokens
  EXPECT_TRUE(tokenizer->IsSpecial(0));
  EXPECT_FALSE(tokenizer->IsSpecial(1));
}

TEST(PipelineTokenizerTest, ANormalizedSpecialTokenIsHiddenByItsOwnText) {
  SmallVocabulary vocabulary;
  ASSERT_TRUE(vocabulary.Make().ok());
  TokenizerSpec spec = *MakeTokenizerSpec(vocabulary.config);
  spec.normalizers = {SimpleNormalizer::kLowercase};
  for (const auto& [content, shown] : {std::pair("<eos>", "ab"), {"<EOS>", "a<eos>b"}}) {
    spec.added = {{.id = 0, .content = content, .normalized = true, .special = true}};
    const auto tokenizer = PipelineTokenizer::Create(spec);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_EQ(Decode(**tokenizer, std::vector<Token>{2, 0, 3}, /*skip_special=*/true), shown);
  }
}

// A token of white space that takes white space along is met in there again and again, as Hugging
// Face's tokenizers have it: with a quadratic search 1 MiB of it would take hours.
TEST(PipelineTokenizerTest, WhiteSpaceIsTakenAlongOnce) {
  SmallVocabulary vocabulary;
  ASSERT_TRUE(vocabulary.Make().ok());
  TokenizerSpec spec = *MakeTokenizerSpec(vocabulary.config);
  spec.added = {{.id = 1, .content = " ", .rstrip = true}};
  const auto tokenizer = PipelineTokenizer::Create(spec);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::vector<Token> few = Ids(**tokenizer, "a    b");
  EXPECT_EQ(few.front(), 2);
  EXPECT_EQ(few.back(), 3);
  EXPECT_EQ(std::count(few.begin(), few.end(), 1), 4);
  const std::string many = "a" + std::string(1 << 20, ' ') + "b";
  EXPECT_EQ(Ids(**tokenizer, many).size(), (1 << 20) + 2);
}

TEST(PipelineTokenizerTest, FramesTheTextAsTheModelWantsIt) {
  SmallVocabulary vocabulary;
  vocabulary.config.bos = 1;
  vocabulary.config.eos = 0;
  vocabulary.config.ends = {0, 7};
  vocabulary.config.add_bos = vocabulary.config.add_eos = true;
  const auto tokenizer = *vocabulary.Make();
  EXPECT_THAT(Ids(*tokenizer, "a"), ElementsAre(1, 2, 0));
  EXPECT_THAT(Ids(*tokenizer, "a", {.add_special = false}), ElementsAre(2));
  EXPECT_THAT(tokenizer->end_of_generation(), ElementsAre(0, 7));
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 0);
}

TEST(PipelineTokenizerTest, IgnoresMergesWhereThePreTokenizerSaysSo) {
  SmallVocabulary vocabulary;
  vocabulary.merges = {"a b"};
  EXPECT_THAT(Ids(**vocabulary.Make(), "abc"), ElementsAre(5, 4));
  vocabulary.config.pre = "llama-bpe";
  EXPECT_THAT(Ids(**vocabulary.Make(), "abc"), ElementsAre(7));
}

TEST(PipelineTokenizerTest, TokenBytesAreTheRawBytes) {
  const auto tokenizer = *SmallVocabulary().Make();
  EXPECT_EQ(tokenizer->vocab_size(), 10);
  EXPECT_EQ(tokenizer->TokenBytes(0), "<eos>");
  EXPECT_EQ(tokenizer->TokenBytes(8), " ");
  EXPECT_EQ(tokenizer->TokenBytes(9), "\xe9");  // é spells the byte E9, not the letter
  EXPECT_EQ(tokenizer->TokenBytes(-1), "");
  EXPECT_EQ(tokenizer->TokenBytes(10), "");
  EXPECT_FALSE(tokenizer->IsSpecial(10));
}

TEST(PipelineTokenizerTest, RefusesWhatIsNoText) {
  const auto tokenizer = *SmallVocabulary().Make();
  EXPECT_THAT(std::string(tokenizer->Encode("ab\xff", {}).status().message()),
              HasSubstr("prompt: not valid UTF-8 at byte 2"));
  EXPECT_THAT(
      std::string(
          tokenizer->Encode(std::string(Tokenizer::kMaxTextBytes + 1, 'a'), {}).status().message()),
      HasSubstr("prompt: 8388609 bytes of text, at most 8388608"));
}

TEST(PipelineTokenizerTest, RefusesMergesThatLie) {
  const auto error = [](std::string_view merge) {
    SmallVocabulary vocabulary;
    vocabulary.merges = {"a b", merge};
    return std::string(vocabulary.Make().status().message());
  };
  EXPECT_THAT(error("ab"), HasSubstr("tokenizer.ggml.merges: entry 1 \"ab\" has no space"));
  EXPECT_THAT(error("a z"), HasSubstr("merges: entry 1 \"a z\" joins what is no token"));
  EXPECT_THAT(error("c c"), HasSubstr("makes what is no token"));
  EXPECT_THAT(error("a b c"), HasSubstr("spells no bytes"));
  EXPECT_THAT(error("\xf0\x9f 1"), HasSubstr("spells no bytes"));
  EXPECT_THAT(error(" "), HasSubstr("has no space"));
}

// Four letters and 60 random merges, each of two tokens that are there already.
struct RandomVocabulary {
  std::vector<std::string> tokens = {"a", "b", "c", "d"};
  std::vector<std::pair<std::string, std::string>> merges;

  explicit RandomVocabulary(uint32_t seed) {
    std::mt19937 random(seed);
    while (merges.size() < 60) {
      const std::string left = tokens[random() % tokens.size()];
      const std::string right = tokens[random() % tokens.size()];
      if (std::find(merges.begin(), merges.end(), std::pair(left, right)) != merges.end()) continue;
      merges.emplace_back(left, right);
      if (std::find(tokens.begin(), tokens.end(), left + right) == tokens.end())
        tokens.push_back(left + right);
    }
  }

  std::unique_ptr<const Tokenizer> Make() const {
    SmallVocabulary vocabulary;
    std::vector<std::string> lines;
    for (const auto& [left, right] : merges) lines.push_back(left + " " + right);
    vocabulary.tokens.assign(tokens.begin(), tokens.end());
    vocabulary.types.assign(tokens.size(), TokenType::kNormal);
    vocabulary.merges.assign(lines.begin(), lines.end());
    return *vocabulary.Make();
  }

  // The definition: the best pair, of equal ones the leftmost, is joined until there is none.
  std::vector<std::string> Join(const std::string& word) const {
    std::vector<std::string> symbols;
    for (const char c : word) symbols.emplace_back(1, c);
    while (true) {
      auto best = merges.end();
      size_t at = 0;
      for (size_t i = 0; i + 1 < symbols.size(); ++i) {
        const auto merge = std::find(merges.begin(), best, std::pair(symbols[i], symbols[i + 1]));
        if (merge != best) best = merge, at = i;
      }
      if (best == merges.end()) return symbols;
      symbols[at] += symbols[at + 1];
      symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(at) + 1);
    }
  }
};

std::string RandomWord(size_t size, std::mt19937* random) {
  std::string word(size, ' ');
  for (char& c : word) c = "abcd"[(*random)() % 4];
  return word;
}

TEST(PipelineTokenizerTest, AgreesWithTheDefinitionOfBpe) {
  std::mt19937 random(5);
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const RandomVocabulary vocabulary(seed);
    const auto tokenizer = vocabulary.Make();
    for (int round = 0; round < 50; ++round) {
      const std::string word = RandomWord(1 + random() % 100, &random);
      std::vector<std::string> got;
      for (const Token token : Ids(*tokenizer, word))
        got.emplace_back(tokenizer->TokenBytes(token));
      ASSERT_EQ(got, vocabulary.Join(word)) << word;
    }
  }
}

TEST(PipelineTokenizerTest, LongWordsAreNotQuadratic) {
  // 1 MB in one piece: with a quadratic merge this would take hours.
  const auto tokenizer = RandomVocabulary(1).Make();
  std::mt19937 random(1);
  const std::string word = RandomWord(1000000, &random);
  EXPECT_EQ(Decode(*tokenizer, Ids(*tokenizer, word), false), word);
}

// One piece is a whole text where the tokenizer has no pre-tokenizer.
TEST(SubwordModelTest, ALongPieceEndsOnceItIsCancelled) {
  constexpr size_t kCharacters = 20 * kCharactersPerLook;
  TokenizerSpec spec;
  spec.vocabulary = {{"a", 0}, {"b", 1}, {"aa", 2}, {"?", 3}};
  BpeModelSpec bpe;
  bpe.merges = {{"a", "a"}};
  BpeModelSpec affixed = bpe;
  affixed.merges.clear();
  affixed.word_suffix = "?";
  const struct {
    SubwordModelSpec model;
    std::string text;
    size_t tokens;
  } cases[] = {
      {bpe, std::string(kCharacters, 'a'), kCharacters / 2},  // one word to merge
      {bpe, std::string(kCharacters, 'b'), kCharacters},      // cut at each character
      {affixed, std::string(kCharacters, 'b'), kCharacters - 1},
      {UnigramModelSpec{}, std::string(kCharacters, 'b'), kCharacters},
      {WordPieceModelSpec{.unknown = "?", .max_characters = kCharacters},
       std::string(kCharacters, 'b'), kCharacters},
  };
  for (const auto& one : cases) {
    spec.model = one.model;
    const auto model = MakeSubwordModel(spec, /*bytes=*/false);
    ASSERT_TRUE(model.ok()) << model.status();
    std::atomic<bool> cancelled = false;
    std::vector<Token> tokens;
    EXPECT_EQ((*model)->Encode(one.text, &cancelled, &tokens), absl::OkStatus());
    EXPECT_EQ(tokens.size(), one.tokens) << one.model.index();
    cancelled = true;
    tokens.clear();
    EXPECT_EQ((*model)->Encode(one.text, &cancelled, &tokens).code(), absl::StatusCode::kCancelled)
        << one.model.index();
    EXPECT_LE(tokens.size(), kCharactersPerLook) << one.model.index();
    tokens.clear();
    EXPECT_EQ((*model)->Encode("b", &cancelled, &tokens), absl::OkStatus());
  }
}

TEST(PipelineTokenizerTest, TinyModelsOfTestsHaveOne) {
  const std::string path = StrCat(::testing::TempDir(), "bpe_tokenizer_test_", getpid(), ".gguf");
  TinyLlamaWriter({}).Write(path);
  const auto tokenizer = FromModel(path);
  unlink(path.c_str());
  EXPECT_EQ(tokenizer->vocab_size(), 320);
  const std::string text = "<|im_start|>user\n the é 😀 \x01<|im_end|>";
  const std::vector<Token> ids = Ids(*tokenizer, text, kParsed);
  EXPECT_EQ(ids.front(), 1);
  EXPECT_EQ(ids.back(), 2);
  EXPECT_THAT(ids, ::testing::IsSupersetOf({259, 260}));
  EXPECT_EQ(Decode(*tokenizer, ids, false), text);
}

TEST(ByteTokenizerTest, IsBytes) {
  const ByteTokenizer tokenizer;
  EXPECT_EQ(tokenizer.vocab_size(), 258);
  EXPECT_THAT(Ids(tokenizer, "aé"), ElementsAre('a', 0xc3, 0xa9));
  EXPECT_THAT(Ids(tokenizer, "a</s>", kParsed), ElementsAre('a', 257));
  EXPECT_EQ(Ids(tokenizer, "a</s>").size(), 5u);
  EXPECT_EQ(tokenizer.bos(), 256);
  EXPECT_EQ(tokenizer.eos(), 257);
  EXPECT_THAT(tokenizer.end_of_generation(), ElementsAre(257));
  EXPECT_TRUE(tokenizer.IsSpecial(256));
  EXPECT_EQ(Decode(tokenizer, {256, 'h', 'i', 257}, true), "hi");
  EXPECT_EQ(Decode(tokenizer, {256, 'h', 'i', 257}, false), "<s>hi</s>");
}

}  // namespace
}  // namespace millrace
