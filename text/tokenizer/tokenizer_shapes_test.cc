// Tokenizers of every part that a tokenizer.json may have, against what Hugging Face's make of
// 2,000 texts, and of 1 MiB of what takes a careless algorithm hours:
// tests/reference/make_shape_reference.py wrote it down. What differs where a hash does, `make
// parity` shows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "formats/tokenizers/tokenizer_json.h"
#include "text/tokenizer/pipeline_tokenizer.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

constexpr size_t kGroup = 200;  // texts for a hash

class Fnv1a {
 public:
  void Add(Token number) {
    for (int byte = 0; byte < 4; ++byte) {
      value_ = (value_ ^ (static_cast<uint32_t>(number) >> (8 * byte) & 0xff)) * 0x100000001b3;
    }
  }
  std::string Hex() const {
    char text[17];
    std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(value_));
    return text;
  }

 private:
  uint64_t value_ = 0xcbf29ce484222325;
};

std::vector<std::string> Texts() {
  std::ifstream file("tests/reference/tokenizer_smollm2.jsonl");
  std::vector<std::string> texts;
  for (std::string line; std::getline(file, line);) {
    const Json entry = Json::parse(line);
    if (entry.contains("text")) texts.push_back(entry["text"]);
  }
  return texts;
}

std::vector<std::string> Hashes(const Tokenizer& tokenizer, const std::vector<std::string>& texts) {
  std::vector<std::string> hashes;
  for (size_t begin = 0; begin < texts.size(); begin += kGroup) {
    Fnv1a hash;
    for (size_t i = begin; i < begin + kGroup && i < texts.size(); ++i) {
      for (const bool parse_special : {true, false}) {
        const auto ids = tokenizer.Encode(texts[i], {.parse_special = parse_special});
        EXPECT_TRUE(ids.ok()) << texts[i] << ": " << ids.status();
        for (const Token id : ids.value_or(std::vector<Token>())) hash.Add(id);
        hash.Add(-1);
      }
    }
    hashes.push_back(hash.Hex());
  }
  return hashes;
}

Json Reference() {
  std::ifstream file("tests/reference/tokenizer_shapes.json");
  return Json::parse(file);
}

std::unique_ptr<const Tokenizer> Make(const Json& reference, const Json& shape) {
  Json document = shape["rest"];
  document["model"] = reference["models"][shape["model"].get<size_t>()];
  const auto spec = ReadTokenizerJson(document.dump(), "tokenizer.json");
  EXPECT_TRUE(spec.ok()) << spec.status();
  auto tokenizer = PipelineTokenizer::Create(*spec);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

TEST(TokenizerShapesTest, EqualHuggingFaces) {
  const std::vector<std::string> texts = Texts();
  ASSERT_EQ(texts.size(), 2000u) << "run from the repository's root";
  const Json reference = Reference();
  EXPECT_GE(reference["shapes"].size(), 160u);
  for (const Json& shape : reference["shapes"]) {
    SCOPED_TRACE(shape["name"].get<std::string>());
    EXPECT_EQ(Hashes(*Make(reference, shape), texts),
              shape["hashes"].get<std::vector<std::string>>());
  }
}

// In quadratic time this would take hours.
TEST(TokenizerShapesTest, AMebibyteWithoutAnEndOfAWordEqualsHuggingFaces) {
  const Json reference = Reference();
  int compared = 0;
  for (const Json& shape : reference["shapes"]) {
    if (!shape.contains("long")) continue;
    ++compared;
    const auto tokenizer = Make(reference, shape);
    std::vector<std::string> hashes;
    for (const std::string_view unit : {"a", " ", "a1"}) {
      std::string text;
      while (text.size() < 1 << 20) text += unit;
      const auto ids = tokenizer->Encode(text, {.parse_special = false});
      ASSERT_TRUE(ids.ok()) << ids.status();
      Fnv1a hash;
      for (const Token id : *ids) hash.Add(id);
      hashes.push_back(hash.Hex());
    }
    EXPECT_EQ(hashes, shape["long"].get<std::vector<std::string>>()) << shape["name"];
  }
  EXPECT_EQ(compared, 8);
}

}  // namespace
}  // namespace millrace
