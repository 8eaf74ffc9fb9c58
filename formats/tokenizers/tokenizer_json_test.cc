#include "formats/tokenizers/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "formats/json/json.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Optional;

Json Small() {
  return Json::parse(R"({
    "added_tokens": [{"id": 3, "content": "<s>", "special": true}],
    "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}})");
}

absl::StatusOr<TokenizerSpec> Read(const Json& json) {
  return ReadTokenizerJson(json.dump(), "tokenizer.json");
}

// Returns the error of Small() with another value at a place.
std::string ErrorWith(const std::string& place, const std::string& value) {
  Json json = Small();
  json[Json::json_pointer(place)] = Json::parse(value);
  const absl::Status status = Read(json).status();
  return status.ok() ? "no error" : std::string(status.message());
}

TEST(TokenizerJsonTest, ReadsAModel) {
  const absl::StatusOr<TokenizerSpec> spec = Read(Small());
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->vocabulary.size(), 3u);
  const auto& bpe = std::get<BpeModelSpec>(spec->model);
  ASSERT_EQ(bpe.merges.size(), 1u);
  EXPECT_EQ(bpe.merges[0].first, "a");
  EXPECT_EQ(bpe.unknown, std::nullopt);
  ASSERT_EQ(spec->added.size(), 1u);
  EXPECT_EQ(spec->added[0].id, 3);
  EXPECT_TRUE(spec->added[0].special);
  EXPECT_FALSE(spec->added[0].normalized);
  EXPECT_THAT(spec->frame, ElementsAre(std::nullopt));
  EXPECT_EQ(spec->decoders, std::nullopt);
}

TEST(TokenizerJsonTest, FlattensSequences) {
  Json json = Small();
  json["pre_tokenizer"] = Json::parse(R"({"type": "Sequence", "pretokenizers": [
      {"type": "Digits", "individual_digits": true},
      {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel", "add_prefix_space": true}]}]})");
  json["post_processor"] = Json::parse(R"({"type": "Sequence", "processors": [
      {"type": "ByteLevel"}, {"type": "RobertaProcessing", "sep": ["b", 1], "cls": ["a", 0]}]})");
  const absl::StatusOr<TokenizerSpec> spec = Read(json);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->pre_tokenizers.size(), 4u);  // digits; space, regex, bytes
  EXPECT_THAT(spec->frame, ElementsAre(Optional(0), std::nullopt, Optional(1)));
}

TEST(TokenizerJsonTest, RefusesByNameWhatIsNotKnown) {
  EXPECT_THAT(
      ErrorWith("/normalizer", R"({"type": "Rot13"})"),
      HasSubstr("tokenizer.json: normalizer.type: \"Rot13\" is not supported (supported: "));
  EXPECT_THAT(
      ErrorWith("/pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [{"type": "Foo"}]})"),
      HasSubstr("pre_tokenizer.pretokenizers[0].type: \"Foo\" is not supported"));
  EXPECT_THAT(ErrorWith("/decoder", R"({"type": "CTC"})"), HasSubstr("decoder.type: \"CTC\""));
  EXPECT_THAT(ErrorWith("/model/dropout", "0.1"), HasSubstr("model.dropout: 0.1 is not supported"));
  EXPECT_EQ(ErrorWith("/model/dropout", "0.0"), "no error");
  EXPECT_THAT(ErrorWith("/model/type", "\"Magic\""), HasSubstr("model.type: \"Magic\""));
  EXPECT_THAT(ErrorWith("/post_processor", R"({"type": "Sequence", "processors": [
                  {"type": "BertProcessing", "sep": ["b", 1], "cls": ["a", 0]},
                  {"type": "BertProcessing", "sep": ["b", 1], "cls": ["a", 0]}]})"),
              HasSubstr("post_processor.processors: 2 that add tokens"));
}

TEST(TokenizerJsonTest, NamesWhatIsWrong) {
  EXPECT_THAT(std::string(ReadTokenizerJson("{", "tokenizer.json").status().message()),
              HasSubstr("tokenizer.json: parse error"));
  EXPECT_THAT(std::string(ReadTokenizerJson("[]", "tokenizer.json").status().message()),
              HasSubstr("tokenizer.json: is no object"));
  EXPECT_THAT(ErrorWith("/model", "null"), HasSubstr("model: is missing"));
  EXPECT_THAT(ErrorWith("/model/vocab", "3"),
              HasSubstr("model.vocab: must be an object or a list"));
  EXPECT_THAT(ErrorWith("/model/vocab/a", "-1"), HasSubstr("model.vocab: \"a\" is -1"));
  EXPECT_THAT(ErrorWith("/model/vocab/a", "4194304"), HasSubstr("must be an id from 0 to 4194303"));
  EXPECT_THAT(ErrorWith("/model/vocab", "[[\"a\", 1]]"), HasSubstr("is not what BPE has"));
  EXPECT_THAT(ErrorWith("/model/merges", "[\"ab\"]"), HasSubstr("model.merges: entry 0"));
  EXPECT_THAT(ErrorWith("/added_tokens", "[3]"),
              HasSubstr("added_tokens: must be a list of objects"));
  EXPECT_THAT(ErrorWith("/normalizer", R"({"type": "Precompiled", "precompiled_charsmap": "%%%"})"),
              HasSubstr("normalizer.precompiled_charsmap: is not base64"));
  EXPECT_THAT(ErrorWith("/pre_tokenizer", R"({"type": "CharDelimiterSplit", "delimiter": "ab"})"),
              HasSubstr("pre_tokenizer.delimiter: is \"ab\", must be one character"));
  EXPECT_THAT(ErrorWith("/pre_tokenizer",
                        R"({"type": "Split", "pattern": {"String": "a"}, "behavior": "Some"})"),
              HasSubstr("pre_tokenizer.behavior: \"Some\" is not supported"));
}

}  // namespace
}  // namespace millrace
