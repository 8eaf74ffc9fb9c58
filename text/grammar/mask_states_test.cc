// Masks of states that have counted differently are one where no token can tell; each must be
// exactly what its tokens do.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/strings.h"
#include "text/grammar/grammar.h"
#include "text/grammar/test_limits.h"

namespace millrace {
namespace {

using Kind = GrammarSpec::Kind;

// Single bytes, and runs of up to 70 bytes, which is longer than some counts and shorter than
// others.
class MaskStatesTest : public testing::Test {
 protected:
  MaskStatesTest() {
    for (int byte = 0; byte < 256; ++byte) texts_.emplace_back(1, static_cast<char>(byte));
    std::mt19937 random(3);
    const std::string letters = "abc,";
    for (const size_t size : {2, 3, 5, 8, 13, 31, 32, 33, 34, 47, 63, 64, 65, 69, 70}) {
      for (const char* run : {"a", "b", "ab", "aab", "a,", "ab,", "é", "[]"}) {
        std::string text;
        while (text.size() < size) text += run;
        if (text.size() <= 70) texts_.push_back(text);
      }
      for (int i = 0; i < 3; ++i) {
        std::string text;
        while (text.size() < size) text += letters[random() % letters.size()];
        texts_.push_back(text);
      }
    }
    for (const char* text : {"\",\"", "\",", ",\"", "\"]", "[\"", "a\"", "aaa\",\"aa", "\\u00"}) {
      texts_.emplace_back(text);
    }
    std::vector<VocabularyToken> tokens;
    for (const std::string& text : texts_) tokens.push_back({text});
    tokens.push_back({"</s>", true});
    end_ = static_cast<Token>(tokens.size() - 1);
    vocabulary_ = std::make_shared<GrammarVocabulary>(tokens, std::vector<Token>{end_},
                                                      static_cast<int32_t>(tokens.size()));
  }

  // Follows random tokens, often long ones. Each mask is compared with what its tokens do in
  // `plain`, the same grammar, of which no mask is asked. Returns the number of masks.
  int Walk(const std::shared_ptr<const Grammar>& grammar,
           const std::shared_ptr<const Grammar>& plain, uint32_t seed, int most) {
    std::mt19937 random(seed);
    kept_.clear();
    GrammarMatcher matcher(grammar, vocabulary_), follower(plain, vocabulary_);
    for (int step = 0; step < most; ++step) {
      const auto mask = matcher.Mask();
      if (!mask.ok()) return step;
      kept_.push_back(*mask);
      std::vector<Token> allowed;
      for (Token token = 0; token < vocabulary_->mask_size(); ++token) {
        // A grammar that is too ambiguous would grow without end.
        if (plain->bytes() > 6 << 20) return step;
        GrammarMatcher copy = follower;
        const bool may = token == end_ ? follower.accepting() : copy.Accept(token);
        EXPECT_EQ(MaskAllows(**mask, token), may)
            << "token " << token << ", " << texts_[std::min<size_t>(token, texts_.size() - 1)]
            << ", at step " << step;
        if (may) allowed.push_back(token);
      }
      if (HasFailure() || allowed.empty()) return step;
      Token token = allowed[random() % allowed.size()];
      if (random() % 2 == 0) {
        for (int i = 0; i < 8; ++i) {
          const Token other = allowed[random() % allowed.size()];
          if (vocabulary_->Bytes(other).size() > vocabulary_->Bytes(token).size()) token = other;
        }
      }
      if (token == end_) return step;
      EXPECT_TRUE(matcher.Accept(token) && follower.Accept(token));
    }
    return most;
  }

  // Returns the number of masks that were looked at; 0 for a grammar that is refused.
  int Check(const GrammarSpec& spec, uint32_t seed, int most = 30) {
    const auto grammar = Grammar::Compile(spec, kUnhurried),
               plain = Grammar::Compile(spec, kUnhurried);
    if (!grammar.ok() || !plain.ok()) return 0;
    int masks = 0;
    for (uint32_t i = 0; i < 3; ++i) masks += Walk(*grammar, *plain, seed * 10 + i, most);
    return masks;
  }

  // Returns the number of different masks before the tokens of `text`, of `size` bytes each.
  size_t MasksAlong(const GrammarSpec& spec, std::string_view text, size_t size) {
    const auto grammar = Grammar::Compile(spec, kUnhurried);
    EXPECT_TRUE(grammar.ok()) << grammar.status();
    GrammarMatcher matcher(*grammar, vocabulary_);
    std::set<const TokenMask*> masks;
    for (size_t at = 0; at < text.size(); at += size) {
      kept_.push_back(*matcher.Mask());
      masks.insert(kept_.back().get());
      EXPECT_TRUE(matcher.AcceptBytes(text.substr(at, size))) << at;
    }
    return masks.size();
  }

  std::vector<std::string> texts_;
  Token end_;
  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  std::vector<std::shared_ptr<const TokenMask>> kept_;  // so that no two have the same address
};

std::string Repeated(std::string_view text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

TEST_F(MaskStatesTest, CountsThatNoTokenUsesUpHaveOneMask) {
  const GrammarSpec letters{.kind = Kind::kRegex, .text = "[a-zA-Z ]{20000}"};
  EXPECT_LE(MasksAlong(letters, Repeated("abc d", 1000), 5), 2u);
  // Near the end each position has its own, from the longest token's length on.
  EXPECT_EQ(MasksAlong(letters, std::string(19999, 'a'), 1), 69u);
  EXPECT_LE(MasksAlong({.kind = Kind::kRegex, .text = "(ab?){5000}"}, Repeated("aab", 1000), 3),
            4u);
  EXPECT_LE(MasksAlong({.kind = Kind::kRegex, .text = "([ab]{500},){1000}"},
                       Repeated(std::string(500, 'a') + ",", 20), 1),
            160u);
  const GrammarSpec pattern{
      .kind = Kind::kJsonSchema,
      .text = R"({"type":"string","pattern":"^[a-z ,]*$","maxLength":20000})"};
  EXPECT_LE(MasksAlong(pattern, "\"" + Repeated("abc, ", 1000), 5), 5u);
  const GrammarSpec items{
      .kind = Kind::kJsonSchema,
      .text = R"({"type":"array","maxItems":9000,"items":{"type":"object","properties":{"name":
          {"type":"string"}},"required":["name"],"additionalProperties":false}})",
      .any_whitespace = false};
  EXPECT_LE(MasksAlong(items, "[" + Repeated(R"({"name": "aa"}, )", 1000), 8), 16u);
}

// A count that a token can use up, one more and one less, in each place of a term and a stack.
TEST_F(MaskStatesTest, ClippedMasksAreExact) {
  const std::vector<std::pair<Kind, std::string>> kForms = {
      {Kind::kRegex, "a{$}b"},
      {Kind::kRegex, "a{0,$}b"},
      {Kind::kRegex, "a{3,$}"},
      {Kind::kRegex, "a{$,}b"},
      {Kind::kRegex, "(ab?){$}"},
      {Kind::kRegex, "(a?b?){0,$}c"},
      {Kind::kRegex, "(aab){2,$}c|a{$}"},
      {Kind::kRegex, "(a{$}b){$}c"},
      {Kind::kRegex, "(a{0,2}b){$,}c{0,$}"},
      {Kind::kRegex, "(?=.*b)[ab]{0,$}"},
      {Kind::kRegex, "(?!.*bb)[ab]{3,$}c"},
      {Kind::kRegex, "(?!a{$})[ab]{0,$}c"},
      {Kind::kJsonSchema, R"({"type":"string","maxLength":$})"},
      {Kind::kJsonSchema, R"({"type":"string","pattern":"^(ab)*c?$","maxLength":$})"},
      {Kind::kJsonSchema, R"({"type":"string","pattern":"^a*b{$}a*$","maxLength":$})"},
      {Kind::kJsonSchema, R"({"type":"string","pattern":"b,","minLength":40,"maxLength":$})"},
      {Kind::kJsonSchema, R"({"type":"string","not":{"pattern":"^a{0,$}$"},"maxLength":$})"},
      {Kind::kJsonSchema,
       R"({"items":{"pattern":"^a+$","type":"string"},"type":"array","maxItems":$})"},
      {Kind::kJsonSchema, R"({"items":{"type":"array"},"type":"array","minItems":$})"},
      {Kind::kJsonSchema,
       R"({"additionalProperties":{"type":"null"},"type":"object","maxProperties":$})"},
      {Kind::kEbnf, "root ::= (\"a\" b){$} \"c\"\nb ::= \"b\" | \"[\" b \"]\""},
      {Kind::kEbnf, "root ::= b{3,$} \",\" root?\nb ::= \"ab\" | \"[\" b \"]\""},
      {Kind::kEbnf, "root ::= b{$,} \"c\"\nb ::= \"a\" | \"[\" b? \"]\""},
      {Kind::kEbnf, "root ::= (b? \"a\"?){0,$} \"c\"\nb ::= \"b\" | \"[\" b \"]\""},
  };
  uint32_t seed = 0;
  for (const auto& [kind, form] : kForms) {
    int masks = 0;
    for (const int count : {5, 24, 69, 70, 71, 139, 326, 327}) {
      std::string text;
      // The last of several counts is `count`, those before it are smaller ones.
      for (size_t i = 0; i < form.size(); ++i) {
        const bool number = form[i] == '$' && form[i + 1] != '"';
        text += number ? StrCat(count) : std::string(1, form[i]);
      }
      SCOPED_TRACE(text);
      masks += Check({.kind = kind, .text = text}, ++seed, count > 100 ? 30 : 15);
      if (HasFailure()) return;
    }
    EXPECT_GT(masks, 50) << form;
  }
}

// Random expressions of letters, in which anything may be repeated. What is within a repetition is
// repeated few times.
std::string RandomRegex(std::mt19937& random, int depth, bool within = false) {
  constexpr const char* kAtoms[] = {"a", "b", "c", ",", "[ab]", "[^c]", "[a-c,]", "."};
  constexpr int kCounts[] = {1, 2, 3, 7, 31, 35, 66, 68, 70, 71, 74, 100, 141, 320, 330, 500};
  const auto count = [&] { return kCounts[random() % (within ? 4 : std::size(kCounts))]; };
  std::string text;
  for (size_t items = 1 + random() % 3; items > 0; --items) {
    std::string item = kAtoms[random() % std::size(kAtoms)];
    const size_t form = random() % 6;
    if (depth > 0 && random() % 2 == 0) {
      item = StrCat("(", RandomRegex(random, depth - 1, form < 3),
                    random() % 3 == 0 ? "|" + RandomRegex(random, depth - 1, form < 3) : "", ")");
    }
    const int least = random() % 2 == 0 ? 0 : count();
    switch (form) {
      case 0:
        item += StrCat("{", least, ",", least + count(), "}");
        break;
      case 1:
        item += StrCat("{", count(), "}");
        break;
      case 2:
        item += StrCat("{", least, ",}");
        break;
      case 3:
        item += "?";
        break;
      default:
        break;
    }
    text += item;
  }
  return text;
}

TEST_F(MaskStatesTest, RandomRegularExpressions) {
  std::mt19937 random(11);
  int masks = 0;
  for (uint32_t i = 0; i < 40 && !HasFailure(); ++i) {
    std::string text = RandomRegex(random, i % 3 == 1 ? 0 : 1);
    const std::string look = RandomRegex(random, 0);
    if (i % 3 == 1) text = StrCat(i % 2 == 0 ? "(?=" : "(?!", look, ")", text);
    SCOPED_TRACE(text);
    masks += Check({.kind = Kind::kRegex, .text = text}, i, 10);
  }
  EXPECT_GT(masks, 500);
}

TEST_F(MaskStatesTest, RandomSchemas) {
  std::mt19937 random(13);
  int masks = 0;
  for (uint32_t i = 0; i < 24 && !HasFailure(); ++i) {
    std::string pattern = RandomRegex(random, 0);
    if (random() % 2 == 0) pattern = StrCat("^", pattern, random() % 2 == 0 ? "$" : "");
    const int least = static_cast<int>(random() % 2 * (random() % 100));
    const std::string string =
        StrCat(R"({"type":"string","pattern":")", pattern, R"(","minLength":)", least,
               R"(,"maxLength":)", least + random() % 600, "}");
    const std::string text = i % 3 != 0 ? string
                                        : StrCat(R"({"type":"array","items":)", string,
                                                 R"(,"maxItems":)", 1 + random() % 90, "}");
    SCOPED_TRACE(text);
    masks += Check({.kind = Kind::kJsonSchema, .text = text, .any_whitespace = false}, i, 10);
  }
  EXPECT_GT(masks, 200);
}

// Repetitions of parts that are no terms.
TEST_F(MaskStatesTest, RandomGrammars) {
  std::mt19937 random(17);
  int masks = 0;
  constexpr int kCounts[] = {1, 2, 5, 22, 24, 35, 36, 68, 70, 71, 90, 300};
  const auto count = [&] { return kCounts[random() % std::size(kCounts)]; };
  for (uint32_t i = 0; i < 80 && !HasFailure(); ++i) {
    std::string body;
    for (int parts = 2; parts > 0; --parts) {
      const char* kParts[] = {"x",          "(x \",\")",        "(\"a\" | x)",
                              "(x? \"b\")", "(x{2} | \"aab\")", "\"a\""};
      const int least = random() % 2 == 0 ? 0 : count();
      const std::string part = kParts[random() % std::size(kParts)];
      const size_t form = random() % 4;
      body += form == 0   ? StrCat(part, "{", least, ",", least + count(), "} ")
              : form == 1 ? StrCat(part, "{", count(), "} ")
              : form == 2 ? StrCat("(", part, "{", least, ",} \"c\") ")
                          : StrCat("(", part, "{0,", count(), "} \",\"){0,", count(), "} ");
    }
    const std::string text =
        StrCat("root ::= ", body, "\nx ::= \"ab\" | \"[\" x", i % 2 == 0 ? "?" : "", " \"]\"");
    SCOPED_TRACE(text);
    masks += Check({.kind = Kind::kEbnf, .text = text}, i, 10);
  }
  EXPECT_GT(masks, 1000);
}

}  // namespace
}  // namespace millrace
