#include "text/jinja/lexer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace millrace::jinja {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

// The texts between tags of a source whose tags hold a single name.
std::vector<std::string> Texts(const std::string& source) {
  std::vector<std::string> texts;
  const auto tokens = Tokenize(source);
  EXPECT_TRUE(tokens.ok()) << tokens.status();
  if (!tokens.ok()) return texts;
  for (const Token& token : *tokens) {
    if (token.kind == TokenKind::kText) texts.push_back(token.text);
  }
  return texts;
}

TEST(LexerTest, TrimsTheLineEndAfterAStatement) {
  EXPECT_THAT(Texts("a{% x %}\n\nb"), ElementsAre("a", "\nb"));
  EXPECT_THAT(Texts("a{% x +%}\nb"), ElementsAre("a", "\nb"));
  EXPECT_THAT(Texts("a{{ x }}\nb"), ElementsAre("a", "\nb"));
  EXPECT_THAT(Texts("a{# x #}\nb"), ElementsAre("a", "b"));
}

TEST(LexerTest, StripsTheLineBeforeAStatement) {
  EXPECT_THAT(Texts("a\n  {% x %}b"), ElementsAre("a\n", "b"));
  EXPECT_THAT(Texts("  {% x %}b"), ElementsAre("b"));
  EXPECT_THAT(Texts("a  {% x %}b"), ElementsAre("a  ", "b"));
  EXPECT_THAT(Texts("a\n  {%+ x %}b"), ElementsAre("a\n  ", "b"));
  EXPECT_THAT(Texts("a\n  {{ x }}b"), ElementsAre("a\n  ", "b"));
  EXPECT_THAT(Texts("{% x %}  {% x %}"), ElementsAre("  "));
  EXPECT_THAT(Texts("{% x %}\n  {% x %}"), ElementsAre());
}

TEST(LexerTest, MinusStripsAllWhiteSpace) {
  EXPECT_THAT(Texts("a \n {%- x -%} \n\n b"), ElementsAre("a", "b"));
  EXPECT_THAT(Texts("a \n {{- x -}} \n\n b"), ElementsAre("a", "b"));
  EXPECT_THAT(Texts("a \n {#- x -#} \n\n b"), ElementsAre("a", "b"));
}

TEST(LexerTest, KeepsRawTextAsItIs) {
  EXPECT_THAT(Texts("{% raw %}{{ a }} {# b #}{% endraw %}"), ElementsAre("{{ a }} {# b #}"));
  EXPECT_THAT(Texts("{%- raw -%} {% if %} {%- endraw -%} x"), ElementsAre("{% if %}", "x"));
}

TEST(LexerTest, NormalizesLineEnds) { EXPECT_THAT(Texts("a\r\nb\rc\n"), ElementsAre("a\nb\nc")); }

TEST(LexerTest, BracketsHideTheEndOfATag) {
  const auto tokens = Tokenize("{{ {'a': {}} }}");
  ASSERT_TRUE(tokens.ok());
  EXPECT_EQ(tokens->back().kind, TokenKind::kEnd);
  EXPECT_EQ((*tokens)[tokens->size() - 2].kind, TokenKind::kPrintEnd);
}

TEST(LexerTest, ReadsNumbersStringsAndLines) {
  const auto tokens = Tokenize("{{ 1_0 1.5e-3 'a\\n\\x41\\u65e5\\q' x_1\n// }}");
  ASSERT_TRUE(tokens.ok());
  std::vector<std::pair<std::string, int>> read;
  for (const Token& token : *tokens) {
    if (!token.text.empty()) read.emplace_back(token.text, token.line);
  }
  EXPECT_THAT(read, ElementsAre(Pair("10", 1), Pair("1.5e-3", 1), Pair("a\nA日\\q", 1),
                                Pair("x_1", 1), Pair("//", 2)));
}

}  // namespace
}  // namespace millrace::jinja
