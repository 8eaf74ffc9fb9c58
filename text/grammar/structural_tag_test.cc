#include "text/grammar/structural_tag.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/strings.h"
#include "text/grammar/test_limits.h"

namespace millrace {
namespace {

// A schema of {"a": integer} and two tags with it.
const std::string kSchema =
    R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
        "additionalProperties": false})";
const std::string kContent = StrCat(R"({"type": "json_schema", "json_schema": )", kSchema, "}");
const std::string kTags =
    StrCat(R"([{"type": "tag", "begin": "<f=x>", "content": )", kContent, R"(, "end": "</f>"},)",
           R"({"begin": "<f=y>", "content": {"type": "any_text"}, "end": ["</f>", "</g>"]}])");
const std::string kCall = R"(<f=x>{"a": 1}</f>)";

struct Case {
  std::string name;
  std::string format;
  std::vector<std::string> in, out;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class StructuralTagTest : public testing::TestWithParam<Case> {};

// XGrammar 0.2.8 takes and refuses the same texts of the first eight.
TEST_P(StructuralTagTest, HasTheseTextsAndNotThose) {
  const std::string json =
      StrCat(R"({"type": "structural_tag", "format": )", GetParam().format, "}");
  const auto spec = ReadStructuralTag(json, "tag");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto grammar = Grammar::Compile(*spec, kUnhurried);
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  for (const std::string& text : GetParam().in) EXPECT_TRUE((*grammar)->Matches(text)) << text;
  for (const std::string& text : GetParam().out) EXPECT_FALSE((*grammar)->Matches(text)) << text;
}

std::string Triggered(std::string_view options) {
  return StrCat(R"({"type": "triggered_tags", "triggers": ["<f="], "tags": )", kTags, options, "}");
}
std::string Separated(std::string_view options) {
  return StrCat(R"({"type": "tags_with_separator", "separator": ",", "tags": )", kTags, options,
                "}");
}
const std::string kRules = StrCat(R"("rules": [["<f>", )", kContent,
                                  R"(], ["<g>", {"type": "const_string", "value": "!"}]])");

INSTANTIATE_TEST_SUITE_P(
    All, StructuralTagTest,
    testing::Values(
        Case{"triggered",
             Triggered(""),
             {"", "hello", kCall, "hi " + kCall, kCall + " bye", kCall + kCall, "hi <f",
              kCall + " hi <f=y>text</g>"},
             {"hi <f=z>", "<f=x>{\"a\": 1}", "<f=x>{\"a\": true}</f>", "<f=y>a</f>b</g>x<f="}},
        Case{"at_least_one",
             Triggered(R"(, "at_least_one": true)"),
             {kCall, kCall + " bye", kCall + kCall, kCall + " hi " + kCall},
             {"", "hello", "hi " + kCall, "hi <f"}},
        Case{"stop_after_first",
             Triggered(R"(, "stop_after_first": true, "excludes": ["bad"])"),
             {"", "hello", kCall, "hi " + kCall},
             {kCall + " bye", kCall + kCall, "a bad " + kCall}},
        Case{"exactly_one",
             Triggered(R"(, "stop_after_first": true, "at_least_one": true)"),
             {kCall, "<f=y></f>"},
             {"", "hi " + kCall, kCall + "!", kCall + kCall}},
        Case{"separated", Separated(""), {"", kCall, kCall + "," + kCall}, {kCall + ",", "a"}},
        Case{"separated_once",
             Separated(R"(, "stop_after_first": true, "at_least_one": true)"),
             {kCall},
             {"", kCall + "," + kCall}},
        Case{"dispatch",
             StrCat(R"({"type": "dispatch", )", kRules, "}"),
             {"", "x", "<f>{\"a\": 1}", "<g>!", "a<g>!b", "a<g>!b<g>!"},
             {"a<g>?", "<f>"}},
        Case{"dispatch_once",
             StrCat(R"({"type": "dispatch", "loop": false, )", kRules, "}"),
             {"", "x", "<f>{\"a\": 1}", "a<g>!"},
             {"a<g>!b", "a<g>!b<g>!"}},
        Case{"sequence",
             StrCat(R"({"type": "sequence", "elements": [{"type": "const_string", "value": "A"},
                        {"type": "or", "elements": [{"type": "regex", "pattern": "[0-9]+"}, )",
                    kContent, R"(]}, {"type": "optional", "content":
                        {"type": "grammar", "grammar": "root ::= \"z\" | \"y\""}}]})"),
             {"A12", "A{\"a\": 2}", "A1z"},
             {"A", "12", "A1zy"}},
        Case{"repetitions",
             R"({"type": "sequence", "elements": [
                  {"type": "plus", "content": {"type": "const_string", "value": "a"}},
                  {"type": "star", "content": {"type": "const_string", "value": "b"}},
                  {"type": "repeat", "min": 1, "max": 2,
                   "content": {"type": "const_string", "value": "c"}},
                  {"type": "repeat", "min": 2, "max": -1,
                   "content": {"type": "const_string", "value": "d"}}]})",
             {"acdd", "aabbccdddd"},
             {"cdd", "abccdddcc", "acccdd", "acd"}},
        Case{"text_in_a_tag",
             R"({"type": "tag", "begin": "<t>", "content": {"type": "any_text",
                 "excludes": ["no"], "max_tokens": null}, "end": "</t>"})",
             {"<t>abc</t>", "<t></t>", "<t></</t>"},
             {"<t>a</t>b</t>", "<t>abc", "<t>no</t>"}}),
    [](const auto& info) { return info.param.name; });

TEST(StructuralTagTest, TheOlderFormIsTaken) {
  const auto spec =
      ReadStructuralTag(StrCat(R"({"type": "structural_tag", "triggers": ["<f="], "structures": [
                 {"begin": "<f=x>", "schema": )",
                               kSchema, R"(, "end": "</f>"}]})"),
                        "response_format");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto grammar = *Grammar::Compile(*spec, kUnhurried);
  for (const std::string& text : {std::string(), StrCat("hi ", kCall, kCall, "!")}) {
    EXPECT_TRUE(grammar->Matches(text)) << text;
  }
  EXPECT_FALSE(grammar->Matches("<f=y>"));
}

TEST(StructuralTagTest, SpecialTokensMayStandForTheirNames) {
  const auto spec = *ReadStructuralTag(
      R"({"type": "structural_tag", "format": {"type": "tag", "begin": "<|call|>f ",
          "content": {"type": "regex", "pattern": "[0-9]"}, "end": "[END]"}})",
      "tag");
  const auto grammar = *Grammar::Compile(spec, kUnhurried);
  EXPECT_TRUE(grammar->Matches("<|call|>f 1[END]"));
  EXPECT_TRUE(
      grammar->Matches("\xff<|call|>\xfe"
                       "f 1\xff[END]\xfe"));
  EXPECT_FALSE(
      grammar->Matches("\xff<|call|>\xff"
                       "f 1[END]"));
}

TEST(StructuralTagTest, WhatIsNotTakenIsNamed) {
  const std::pair<std::string, std::string> kRefusals[] = {
      {"[]", "tag: []; allowed: a structural tag"},
      {R"({"type": "tags"})", "tag.type"},
      {R"({"type": "structural_tag"})", "tag.format is missing"},
      {R"({"type": "structural_tag", "format": {"type": "token", "token": 3}})",
       "tag.format.type: \"token\" is not supported"},
      {R"({"type": "structural_tag", "format": {"type": "any_text", "max_chars": 3}})",
       "tag.format.max_chars is not supported"},
      {R"({"type": "structural_tag", "format": {"type": "json_schema", "json_schema": {},
           "style": "qwen_xml"}})",
       "tag.format.style"},
      {R"({"type": "structural_tag", "format": {"type": "json_schema", "json_schema": {},
           "any_order": true}})",
       "tag.format.any_order is not supported"},
      {R"({"type": "structural_tag", "format": {"type": "sequence", "elements": [
           {"type": "const_string"}]}})",
       "tag.format.elements[0].value is missing"},
      {R"({"type": "structural_tag", "format": {"type": "tag", "begin": {"type": "token"},
           "content": {}, "end": ""}})",
       "tag.format.begin"},
      {StrCat(R"({"type": "structural_tag", "format": {"type": "triggered_tags",
                  "triggers": ["<x"], "tags": )",
              kTags, "}}"),
       "tag.format.tags[0].begin: \"<f=x>\" begins with 0 of the triggers"},
      {R"({"type": "structural_tag", "format": {"type": "repeat", "min": 3, "max": 2,
           "content": {"type": "any_text"}}})",
       "tag.format.max"},
      {R"({"type": "structural_tag", "structures": [1], "triggers": ["<"]})", "tag.structures[0]"},
      {R"({"type": "structural_tag", "structures": [], "triggers": ["<"]})", "tag.structures"},
      {"{", "tag: it is no JSON"},
  };
  for (const auto& [tag, named] : kRefusals) {
    const auto spec = ReadStructuralTag(tag, "tag");
    ASSERT_FALSE(spec.ok()) << tag;
    EXPECT_NE(spec.status().message().find(named), std::string::npos) << spec.status();
  }
}

TEST(StructuralTagTest, NestingIsBounded) {
  const auto nested = [](int depth, std::string_view before, std::string_view after) {
    std::string format = R"({"type": "any_text"})";
    for (int i = 0; i < depth; ++i) format = StrCat(before, format, after);
    return ReadStructuralTag(StrCat(R"({"type": "structural_tag", "format": )", format, "}"),
                             "tag");
  };
  EXPECT_FALSE(nested(100, R"({"type": "star", "content": )", "}").ok());
  EXPECT_TRUE(nested(20, R"({"type": "optional", "content": )", "}").ok());
  // Tags that stand in the grammar twice do not grow without bound.
  EXPECT_FALSE(nested(30,
                      R"({"type": "tags_with_separator", "separator": ",", "tags": [{"begin": "a",
                              "end": "b", "content": )",
                      "}]}")
                   .ok());
}

}  // namespace
}  // namespace millrace
