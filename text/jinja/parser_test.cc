#include "text/jinja/parser.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace millrace::jinja {
namespace {

std::string Error(const std::string& source) {
  return std::string(Parse(source, {}).status().message());
}

TEST(ParserTest, RefusesByNameWhatIsNotSupported) {
  const std::pair<const char*, const char*> cases[] = {
      {"\n\n{% include 'x' %}", "line 3: include is not supported"},
      {"{% import 'x' as y %}", "line 1: import is not supported"},
      {"{% from 'x' import y %}", "line 1: from is not supported"},
      {"{% extends 'x' %}", "line 1: extends is not supported"},
      {"{% block x %}{% endblock %}", "line 1: block is not supported"},
      {"{% autoescape true %}{% endautoescape %}", "line 1: autoescape is not supported"},
      {"a\n{{ x | urlize }}", "line 2: filter urlize is not supported"},
      {"{% for x in y %}{{ x is notest }}{% endfor %}", "line 1: test notest is not supported"},
      {"{{ x is defined is true }}", "line 1: a chain of tests is not supported"},
      {"{{ x | first(1)(2) }}", "line 1: calling the result of a filter or test is not supported"},
      {"{{ x[1, 2] }}", "line 1: an index of several parts is not supported"},
  };
  for (const auto& [source, error] : cases) EXPECT_EQ(Error(source), error) << source;
}

// As Jinja does, so that a template may ask which engine renders it.
TEST(ParserTest, LeavesUnknownFiltersOfABranchToTheRendering) {
  EXPECT_EQ(Error("{% if x %}{{ x | nofilter }}{% elif x is notest %}{% endif %}"), "");
  EXPECT_EQ(Error("{% if x %}{% for y in x %}{{ y | nofilter }}{% endfor %}{% endif %}"),
            "line 1: filter nofilter is not supported");
  EXPECT_EQ(Error("{% if x %}{% endif %}{{ x | nofilter }}"),
            "line 1: filter nofilter is not supported");
}

TEST(ParserTest, SaysWhereTheSourceIsMalformed) {
  const std::pair<const char*, const char*> cases[] = {
      {"{{ }}", "line 1: an expression is missing"},
      {"a\n{{ b", "line 2: the template ends before a }}"},
      {"{% if x %}\n\n", "line 2: the template ends before endif"},
      {"{% endif %}", "line 1: unexpected 'endif'"},
      {"{% for x in y %}{% endif %}", "line 1: unexpected 'endif'"},
      {"{{ (1] }}", "line 1: unexpected ']'"},
      {"{{ a b }}", "line 1: unexpected 'b'"},
      {"{{ a. }}", "line 1: unexpected '}}', wanted an attribute's name"},
      {"{{ 1 $ 2 }}", "line 1: unexpected character '$'"},
      {"{{ 'a }}", "line 1: a string has no end"},
      {"{{ '\\ud800' }}", "line 1: a string has an invalid escape"},
      {"{# a", "line 1: the comment has no end"},
      {"{% raw %} a", "line 1: raw has no endraw"},
      {"{% break %}", "line 1: break is outside a loop"},
      {"{% for x in y %}{% set z %}{% continue %}{% endset %}{% endfor %}",
       "line 1: continue is outside a loop"},
      {"{% set loop = 1 %}", "line 1: cannot assign to loop"},
      {"{{ 99999999999999999999 }}", "line 1: an integer does not fit 64 bits"},
  };
  for (const auto& [source, error] : cases) EXPECT_EQ(Error(source), error) << source;
}

}  // namespace
}  // namespace millrace::jinja
