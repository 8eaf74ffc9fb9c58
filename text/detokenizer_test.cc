#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "text/tokenizer/pipeline_tokenizer.h"
#include "text/utf8.h"

namespace millrace {
namespace {

// Decoding all at once, by other means: the bytes joined, then made valid.
std::string Whole(const Tokenizer& tokenizer, const std::vector<Token>& tokens, bool skip_special) {
  std::string bytes, text;
  for (const Token token : tokens) {
    if (!skip_special || !tokenizer.IsSpecial(token)) bytes.append(tokenizer.TokenBytes(token));
  }
  return AppendWholeCharacters(bytes, &text) < bytes.size() ? text + "\ufffd" : text;
}

TEST(DetokenizerTest, NeverGivesOutHalfACharacter) {
  const ByteTokenizer tokenizer;
  Detokenizer detokenizer(&tokenizer, true);
  EXPECT_EQ(detokenizer.Add(0xf0), "");
  EXPECT_EQ(detokenizer.Add(0x9f), "");
  EXPECT_EQ(detokenizer.Add(256), "");  // skipped, and the character goes on
  EXPECT_EQ(detokenizer.Add(0x98), "");
  EXPECT_EQ(detokenizer.Add(0x80), "😀");
  EXPECT_EQ(detokenizer.Add('a'), "a");
  EXPECT_EQ(detokenizer.Add(0xe2), "");
  EXPECT_EQ(detokenizer.Add('b'), "\ufffdb");
  EXPECT_EQ(detokenizer.Add(0xe2), "");
  EXPECT_EQ(detokenizer.Add(0x82), "");
  EXPECT_EQ(detokenizer.Flush(), "\ufffd");
  EXPECT_EQ(detokenizer.Flush(), "");
}

TEST(DetokenizerTest, DeltasJoinedAreTheWhole) {
  const ByteTokenizer tokenizer;
  // Bytes that begin, go on and break characters, more often than chance would have them.
  constexpr Token kBytes[] = {'a',  0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc2, 0xdf, 0xe0,
                              0xe2, 0xed, 0xef, 0xf0, 0xf1, 0xf4, 0xf5, 0xff, 256,  257};
  std::mt19937 random(11);
  for (int round = 0; round < 20000; ++round) {
    std::vector<Token> tokens(random() % 12);
    for (Token& token : tokens) {
      token = random() % 3 == 0 ? static_cast<Token>(random() % 258)
                                : kBytes[random() % std::size(kBytes)];
    }
    for (const bool skip_special : {false, true}) {
      Detokenizer detokenizer(&tokenizer, skip_special);
      std::string joined;
      for (const Token token : tokens) {
        const std::string delta = detokenizer.Add(token);
        ASSERT_EQ(FindInvalidUtf8(delta), std::string_view::npos);
        joined += delta;
      }
      joined += detokenizer.Flush();
      ASSERT_EQ(joined, Whole(tokenizer, tokens, skip_special));
      ASSERT_EQ(joined, Decode(tokenizer, tokens, skip_special));
    }
  }
}

// Tokens that end a word have a suffix, which Hugging Face's BPEDecoder makes a space, but for the
// last token's.
std::unique_ptr<const Tokenizer> Suffixed() {
  TokenizerSpec spec;
  spec.vocabulary = {{"low</w>", 0}, {"er</w>", 1}, {"new", 2}, {"</w>", 3}, {"<s>", 4}};
  spec.model = WordLevelModelSpec{"new"};
  spec.frame = {std::nullopt};
  spec.added = {{.id = 4, .content = "<s>", .special = true}};
  spec.decoders = {{SuffixDecoder{"</w>"}}};
  return *PipelineTokenizer::Create(spec);
}

TEST(DetokenizerTest, APromptsLastWordIsNotGluedToTheAnswer) {
  const auto tokenizer = Suffixed();
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::vector<Token> tokens(1 + random() % 8);
    for (Token& token : tokens) token = static_cast<Token>(random() % 5);
    const std::string whole = Decode(*tokenizer, tokens, /*skip_special=*/true);
    for (size_t size = 0; size <= tokens.size(); ++size) {
      const auto prompt = absl::MakeConstSpan(tokens).first(size);
      Detokenizer detokenizer(tokenizer.get(), /*skip_special=*/true);
      detokenizer.Follow(prompt);
      std::string answer;
      for (size_t i = size; i < tokens.size(); ++i) answer += detokenizer.Add(tokens[i]);
      answer += detokenizer.Flush();
      const auto shown = [&](Token token) { return !tokenizer->IsSpecial(token); };
      // An answer that shows nothing does not show the prompt's last space either.
      if (std::any_of(tokens.begin() + static_cast<ptrdiff_t>(size), tokens.end(), shown)) {
        EXPECT_EQ(Decode(*tokenizer, prompt, /*skip_special=*/true) + answer, whole);
      } else {
        EXPECT_EQ(answer, "");
      }
    }
  }
  EXPECT_EQ(Decode(*tokenizer, std::vector<Token>{0, 2, 1}, true), "low newer");
}

}  // namespace
}  // namespace millrace
