// Tokenizers of every part that a tokenizer.json may have, against what Hugging Face's make of
// 2,000 texts: tests/reference/make_shape_reference.py wrote it down. What differs where a hash
// does, `make parity` shows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/tokenizer_json.h"
#include "server/text/pipeline_tokenizer.h"

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

TEST(TokenizerShapesTest, EqualHuggingFaces) {
  const std::vector<std::string> texts = Texts();
  ASSERT_EQ(texts.size(), 2000u) << "run from the repository's root";
  std::ifstream file("tests/reference/tokenizer_shapes.json");
  const Json reference = Json::parse(file);
  EXPECT_GE(reference["shapes"].size(), 160u);
  for (const Json& shape : reference["shapes"]) {
    SCOPED_TRACE(shape["name"].get<std::string>());
    Json document = shape["rest"];
    document["model"] = reference["models"][shape["model"].get<size_t>()];
    const auto spec = ReadTokenizerJson(document.dump(), "tokenizer.json");
    ASSERT_TRUE(spec.ok()) << spec.status();
    const auto tokenizer = PipelineTokenizer::Create(*spec);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_EQ(Hashes(**tokenizer, texts), shape["hashes"].get<std::vector<std::string>>());
  }
}

}  // namespace
}  // namespace millrace
