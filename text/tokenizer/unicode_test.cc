// Compares what normalizers and UnicodeScripts make of every character with Hugging Face's.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "formats/tokenizers/tokenizer_json_parts.h"
#include "text/tokenizer/class_reference_test_util.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/unicode_forms.h"
#include "text/utf8.h"

namespace millrace {
namespace {

// The characters of the planes that have any but those for private use.
std::vector<char32_t> Assigned() {
  std::vector<char32_t> codes;
  const auto append = [&codes](char32_t code) { codes.push_back(code); };
  ForEachCharacter(0, 0x40000, append);
  ForEachCharacter(0xe0000, 0xe1000, append);
  return codes;
}

TEST(UnicodeTest, NormalizersAreHuggingFaces) {
  std::string text;
  for (const char32_t code : Assigned()) {
    AppendCharacter(code, &text);
    text += "\na";
    AppendCharacter(code, &text);
    text += "\u0301\u0323\n";
  }
  EXPECT_EQ(ClassReference()["normalizers"].size(), 10u);
  for (const auto& entry : ClassReference()["normalizers"]) {
    SCOPED_TRACE(entry["normalizer"].dump());
    const auto specs = ReadNormalizers(entry["normalizer"], "normalizer: ");
    ASSERT_TRUE(specs.ok()) << specs.status();
    const absl::StatusOr<Normalizer> normalizer = Normalizer::Create(*specs);
    ASSERT_TRUE(normalizer.ok()) << normalizer.status();
    NormalizedText normalized = UnnormalizedText(text);
    ASSERT_TRUE(normalizer->Apply(&normalized).ok());
    ReferenceDigest digest;
    digest.Add(normalized.text);
    EXPECT_EQ(digest.Finish(), entry["digest"].get<std::string>());
  }
}

// Marks later than Unicode 9 are starters there, which compose with nothing.
TEST(UnicodeTest, LateMarksStandBetweenOthers) {
  for (const char* text : {"\U00011935\U00011930", "a\u07fd\u0301", "e\u1abf\u0301"}) {
    EXPECT_EQ(NormalizeUnicode(text, /*compatibility=*/false, /*compose=*/true), text);
  }
  EXPECT_EQ(
      NormalizeUnicode("a\u0301\u0323\u07fda\u0301", /*compatibility=*/false, /*compose=*/true),
      "\u1ea1\u0301\u07fd\u00e1");
}

std::string DigestOfScripts(std::string_view text) {
  const absl::StatusOr<PreTokenizer> scripts =
      PreTokenizer::Create({SimplePreTokenizer::kUnicodeScripts});
  EXPECT_TRUE(scripts.ok()) << scripts.status();
  ReferenceDigest digest;
  const absl::Status status = scripts->Split({text, 1}, [&](TextPiece piece) {
    digest.Add(static_cast<uint32_t>(piece.text.size()));
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  return digest.Finish();
}

TEST(UnicodeTest, ScriptsAreHuggingFaces) {
  EXPECT_EQ(DigestOfScripts(EveryCharacter()), ClassReference()["scripts"][0].get<std::string>());
  // Another order brings other neighbours.
  const std::vector<char32_t> codes = Assigned();
  std::string text;
  for (size_t i = 0; i < codes.size(); ++i) AppendCharacter(codes[i * 7919 % codes.size()], &text);
  EXPECT_EQ(DigestOfScripts(text), ClassReference()["scripts"][1].get<std::string>());
}

}  // namespace
}  // namespace millrace
