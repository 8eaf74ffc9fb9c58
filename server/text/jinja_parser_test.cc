#include "server/text/jinja_parser.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace millrace::jinja {
namespace {

std::string Error(const std::string& source) {
  return std::string(Parse(source, {}).status().message());
}

TEST(ParserTest, RefusesByNameWhatIsBeyondTheSubset) {
  const std::pair<const char*, const char*> cases[] = {
      {"\n\n{% macro f(x) %}{% endmacro %}", "line 3: macro is not supported"},
      {"{% call f() %}{% endcall %}", "line 1: call is not supported"},
      {"{% include 'x' %}", "line 1: include is not supported"},
      {"{% import 'x' as y %}", "line 1: import is not supported"},
      {"{% from 'x' import y %}", "line 1: from is not supported"},
      {"{% extends 'x' %}", "line 1: extends is not supported"},
      {"{% block x %}{% endblock %}", "line 1: block is not supported"},
      {"{% filter upper %}{% endfilter %}", "line 1: filter is not supported"},
      {"{% with x = 1 %}{% endwith %}", "line 1: with is not supported"},
      {"{% for x in y recursive %}{% endfor %}", "line 1: for … recursive is not supported"},
      {"{% set x | upper %}{% endset %}", "line 1: a set block with a filter is not supported"},
      {"a\n{{ x | dictsort }}", "line 2: filter dictsort is not supported"},
      {"{{ x is sameas y }}", "line 1: test sameas is not supported"},
      {"{{ x.format(1) }}", "line 1: method format is not supported"},
      {"{{ x.append(1) }}", "line 1: method append is not supported"},
      {"{{ cycler(1) }}", "line 1: function cycler is not supported"},
      {"{{ f(*x) }}", "line 1: function f is not supported"},
      {"{{ range(*x) }}", "line 1: unpacking arguments is not supported"},
      {"{{ x[0](1) }}", "line 1: calling an expression is not supported"},
      {"{{ namespace({}) }}", "line 1: namespace of a dict is not supported"},
      {"{{ x is defined is true }}", "line 1: a chain of tests is not supported"},
      {"{{ +x }}", "line 1: a sign + is not supported"},
      {"{{ x[1, 2] }}", "line 1: an index of several parts is not supported"},
  };
  for (const auto& [source, error] : cases) EXPECT_EQ(Error(source), error) << source;
}

TEST(ParserTest, ChecksArgumentsWhenItParses) {
  const std::pair<const char*, const char*> cases[] = {
      {"{{ range(1,2,3,4,5,6) }}", "line 1: function range takes at most 3 arguments"},
      {"{{ range() }}", "line 1: function range needs the argument 'start'"},
      {"{{ x | trim(nope=1) }}",
       "line 1: filter trim has no argument 'nope', or is given it twice"},
      {"{{ x | trim('a', chars='b') }}",
       "line 1: filter trim has no argument 'chars', or is given it twice"},
      {"{{ x is divisibleby }}", "line 1: test divisibleby needs the argument 'num'"},
      {"{{ x.get() }}", "line 1: method get needs the argument 'key'"},
  };
  for (const auto& [source, error] : cases) EXPECT_EQ(Error(source), error) << source;
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
