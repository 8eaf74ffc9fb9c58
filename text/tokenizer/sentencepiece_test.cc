// tokenizer.model and tekken.json against SentencePiece and mistral-common, whose results
// tests/reference/make_sentencepiece_reference.py has written down.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "base/strings.h"
#include "formats/json/json.h"
#include "formats/model_text.h"
#include "formats/tokenizers/sentencepiece_model.h"
#include "formats/tokenizers/tekken.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "text/detokenizer.h"
#include "text/tokenizer/pipeline_tokenizer.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Json& Reference() {
  static const Json* const reference = [] {
    std::ifstream file("tests/reference/sentencepiece_reference.json");
    return new Json(Json::parse(file));
  }();
  return *reference;
}

std::string FileOf(const std::string& name) {
  std::string bytes;
  EXPECT_TRUE(absl::Base64Unescape(Reference()[name]["file"].get<std::string>(), &bytes)) << name;
  return bytes;
}

absl::StatusOr<TokenizerSpec> Read(const std::string& name, const std::string& bytes) {
  if (name == "tekken") return ReadTekken(bytes, "tekken.json");
  absl::StatusOr<SentencePieceTokenizer> read = ReadSentencePieceModel(bytes, "tokenizer.model");
  if (!read.ok()) return read.status();
  return std::move(read->spec);
}

TEST(SentencePieceTest, TextsHaveTheIdsOfTheOriginals) {
  ASSERT_EQ(Reference().size(), 7);
  for (const auto& [name, expected] : Reference().items()) {
    const std::string bytes = FileOf(name);
    const absl::StatusOr<TokenizerSpec> spec = Read(name, bytes);
    ASSERT_TRUE(spec.ok()) << name << ": " << spec.status();
    const auto tokenizer = PipelineTokenizer::Create(*spec);
    ASSERT_TRUE(tokenizer.ok()) << name << ": " << tokenizer.status();
    for (size_t i = 0; i < expected["texts"].size(); ++i) {
      const auto text = expected["texts"][i].get<std::string>();
      const auto ids = (*tokenizer)->Encode(text, {.add_special = false});
      ASSERT_TRUE(ids.ok()) << name << ": " << ids.status();
      EXPECT_EQ(Json(*ids), expected["ids"][i]) << name << ": " << expected["texts"][i];
      // SentencePiece shows unknown text as two question marks, and we as nothing. It also takes
      // away spaces in front of all tokens but the first, if users write its mark for them.
      const bool unknown = std::count(ids->begin(), ids->end(), 0) > 0;
      if (name != "tekken" && (unknown || text.find("\u2581") != text.npos)) continue;
      EXPECT_EQ(Decode(**tokenizer, *ids, true), expected["decoded"][i].get<std::string>())
          << name << ": " << expected["texts"][i];
    }
  }
}

TEST(SentencePieceTest, DamagedFilesAreRefused) {
  for (const char* name : {"bpe", "unigram suffix", "tekken"}) {
    const std::string bytes = FileOf(name);
    for (size_t size = 0; size < bytes.size(); size += 1 + size / 17) {
      const std::string cut = bytes.substr(0, size);
      const absl::StatusOr<TokenizerSpec> spec = Read(name, cut);
      // Cut between two of its messages, a model may still be whole.
      if (spec.ok()) (void)PipelineTokenizer::Create(*spec).status();
      EXPECT_TRUE(!spec.ok() || std::string(name) != "tekken") << name << " of " << size;
    }
  }
}

// A field of bytes, and one of a number, in protobuf's wire format.
std::string Field(int number, const std::string& bytes) {
  return StrCat(std::string(1, static_cast<char>(number << 3 | 2)),
                std::string(1, static_cast<char>(bytes.size())), bytes);
}
std::string Field(int number, int value) {
  return {static_cast<char>(number << 3), static_cast<char>(value)};
}
std::string Piece(const std::string& text, int type) {
  return Field(1, Field(1, text) + Field(3, type));
}

TEST(SentencePieceTest, ErrorsNameTheField) {
  const auto error = [](const std::string& model) {
    return std::string(ReadSentencePieceModel(model, "tokenizer.model").status().message());
  };
  const std::string good = Piece("<unk>", 2) + Piece("a", 1);
  EXPECT_TRUE(ReadSentencePieceModel(good, "tokenizer.model").ok()) << error(good);
  EXPECT_THAT(error(""), HasSubstr("tokenizer.model: pieces: there are none"));
  EXPECT_THAT(error("version https://git-lfs"), HasSubstr("tokenizer.model: "));
  EXPECT_THAT(error(good + Piece("a", 1)), HasSubstr("pieces[2].piece: \"a\" is there twice"));
  EXPECT_THAT(error(good + Piece("b", 9)), HasSubstr("pieces[2].type: is 9, must be 1 to 6"));
  EXPECT_THAT(error(good + Piece("", 1)), HasSubstr("pieces[2].piece: has 0 bytes"));
  EXPECT_THAT(error(good + Field(1, 7)), HasSubstr("pieces: is of another type"));
  EXPECT_THAT(error(Piece("a", 1)), HasSubstr("trainer_spec.unk_id: 0 is no piece"));
  EXPECT_THAT(error(good + Field(2, Field(3, 3))), HasSubstr("model_type: WORD is not supported"));
  EXPECT_THAT(error(good + Field(2, Field(3, 2)) + Piece("b", 5)),
              HasSubstr("pieces[2].type: UNUSED is not supported in BPE"));
  EXPECT_THAT(error(good + Field(5, Field(2, "x"))), HasSubstr("denormalizer_spec"));
  EXPECT_THAT(error(good + "\x0a\x7f"), HasSubstr("more than are left"));
  // A piece's score that is not finite.
  EXPECT_THAT(error(good + Field(1, Field(1, "b") + std::string("\x15\0\0\x80\x7f", 5))),
              HasSubstr("pieces[2].score: is not finite"));
}

TEST(SentencePieceTest, TekkensErrorsNameTheField) {
  const auto changed = [](const char* patch) {
    Json document = Json::parse(FileOf("tekken"));
    document.merge_patch(Json::parse(patch));
    return std::string(ReadTekken(document.dump(), "tekken.json").status().message());
  };
  EXPECT_EQ(changed("{}"), "");
  EXPECT_THAT(changed(R"({"config": null})"), HasSubstr("tekken.json: config: is missing"));
  EXPECT_THAT(changed(R"({"config": {"default_vocab_size": 90000}})"),
              HasSubstr("vocab: must be a list of at least 89990"));
  EXPECT_THAT(changed(R"({"config": {"default_num_special_tokens": 5}})"),
              HasSubstr("special_tokens: has 6, but the config says 5"));
  EXPECT_THAT(changed(R"({"special_tokens": [{"rank": 1, "token_str": "<s>"}]})"),
              HasSubstr("special_tokens[0].rank"));
  EXPECT_THAT(changed(R"({"special_tokens": [{"rank": 0, "token_str": "<s>"}]})"),
              HasSubstr("must have <s> and </s>"));
  Json document = Json::parse(FileOf("tekken"));
  document["vocab"][300]["token_bytes"] = "*";
  EXPECT_THAT(std::string(ReadTekken(document.dump(), "tekken.json").status().message()),
              HasSubstr("vocab[300].token_bytes: must be base64"));
  document["vocab"][300]["token_bytes"] = "YQ==";
  EXPECT_THAT(std::string(ReadTekken(document.dump(), "tekken.json").status().message()),
              HasSubstr("vocab[300].token_bytes: are there twice"));
  document["vocab"][65]["token_bytes"] = "YWE=";
  EXPECT_THAT(std::string(ReadTekken(document.dump(), "tekken.json").status().message()),
              HasSubstr("vocab[65].token_bytes: must be its rank's byte"));
}

// A folder with such a file and a tokenizer_config.json.
class FolderTest : public ::testing::Test {
 protected:
  FolderTest() : folder_(StrCat(::testing::TempDir(), "sentencepiece_test_", getpid())) {}
  ~FolderTest() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<const Tokenizer> Open(const std::string& name, const std::string& config) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    const char* const file = name == "tekken" ? "/tekken.json" : "/tokenizer.model";
    std::ofstream(folder_ + file) << FileOf(name);
    if (!config.empty()) std::ofstream(folder_ + "/tokenizer_config.json") << config;
    absl::StatusOr<ModelText> text = ReadFolderText(folder_);
    EXPECT_TRUE(text.ok()) << text.status();
    text_ = *std::move(text);
    auto tokenizer = PipelineTokenizer::Create(text_.tokenizer);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return *std::move(tokenizer);
  }

  static std::vector<Token> Ids(const Tokenizer& tokenizer, const std::string& text) {
    return *tokenizer.Encode(text, {.add_special = true, .parse_special = true});
  }
  static std::string Shown(const Tokenizer& tokenizer, const std::string& text) {
    std::string shown;
    for (const Token token : Ids(tokenizer, text)) {
      shown += StrCat("[", tokenizer.TokenBytes(token), "]");
    }
    return shown;
  }

  const std::string folder_;
  ModelText text_;
};

TEST_F(FolderTest, ATokenizerModelAloneHasItsSpecialTokensAndBos) {
  const auto tokenizer = Open("bpe", "");
  EXPECT_EQ(text_.bos, "<s>");
  EXPECT_EQ(text_.eos, "</s>");
  EXPECT_EQ(text_.unknown, "<unk>");
  EXPECT_EQ(text_.pad, std::nullopt);
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_THAT(tokenizer->end_of_generation(), ElementsAre(2));
  // Behind a special token a text begins with a space again, as it has for LlamaTokenizer.
  EXPECT_EQ(Shown(*tokenizer, "the</s>the"), "[<s>][ the][</s>][ the]");
  EXPECT_EQ(Decode(*tokenizer, Ids(*tokenizer, "the</s>"), true), "the");
  // What a user writes is no special token.
  const std::vector<Token> plain = *tokenizer->Encode("</s>", {.add_special = false});
  EXPECT_EQ(std::count(plain.begin(), plain.end(), 2), 0);
}

TEST_F(FolderTest, TheConfigSaysTheFrame) {
  auto tokenizer = Open("bpe", R"({"add_bos_token": false, "add_eos_token": true})");
  EXPECT_EQ(Shown(*tokenizer, "the"), "[ the][</s>]");
  tokenizer = Open("bpe", R"({"legacy": false})");
  EXPECT_EQ(Shown(*tokenizer, "the</s>the"), "[<s>][ the][</s>][t][he]");
  tokenizer = Open("bpe", R"({"add_prefix_space": false})");
  EXPECT_EQ(Shown(*tokenizer, "the"), "[<s>][t][he]");
  tokenizer = Open("bpe", R"({"bos_token": null})");
  EXPECT_EQ(Shown(*tokenizer, "the"), "[ the]");
  tokenizer = Open("bpe", R"({"eos_token": "<|end|>", "added_tokens_decoder":
      {"420": {"content": "<|end|>", "special": true}}})");
  EXPECT_THAT(tokenizer->end_of_generation(), ElementsAre(420));
  EXPECT_EQ(Shown(*tokenizer, "the<|end|>"), "[<s>][ the][<|end|>]");
}

TEST_F(FolderTest, TekkenHasItsSpecialTokensAndBos) {
  const auto tokenizer = Open("tekken", "");
  EXPECT_EQ(text_.bos, "<s>");
  EXPECT_EQ(text_.eos, "</s>");
  EXPECT_THAT(tokenizer->end_of_generation(), ElementsAre(2));
  EXPECT_THAT(Ids(*tokenizer, "[INST]<SPECIAL_9>"), ElementsAre(1, 3, 9));
  EXPECT_EQ(tokenizer->vocab_size(), 400);
}

TEST_F(FolderTest, TokenizerJsonGoesFirst) {
  Open("tekken", "");
  std::ofstream(folder_ + "/tokenizer.model") << FileOf("bpe");
  EXPECT_EQ(ReadFolderText(folder_)->tokenizer.added.size(), 10) << "tekken.json was not read";
  std::ofstream(folder_ + "/tokenizer.json") << "{}";
  EXPECT_THAT(std::string(ReadFolderText(folder_).status().message()),
              HasSubstr("tokenizer.json: model"));
  std::filesystem::remove(folder_ + "/tokenizer.json");
  std::filesystem::remove(folder_ + "/tekken.json");
  EXPECT_TRUE(ReadFolderText(folder_).ok());
  std::filesystem::remove(folder_ + "/tokenizer.model");
  EXPECT_THAT(std::string(ReadFolderText(folder_).status().message()),
              HasSubstr("tokenizer.json: the folder has none, and neither tekken.json nor "
                        "tokenizer.model"));
}

}  // namespace
}  // namespace millrace
