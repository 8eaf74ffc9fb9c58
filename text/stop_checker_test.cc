#include "text/stop_checker.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace millrace {
namespace {

struct Outcome {
  std::string text;
  std::optional<size_t> stopped;
  bool operator==(const Outcome&) const = default;
};

Outcome Check(const std::vector<std::string>& stops, bool include,
              const std::vector<std::string>& deltas) {
  StopChecker checker(stops, include);
  Outcome outcome;
  for (const std::string& delta : deltas) {
    const StopChecker::Result result = checker.Add(delta);
    outcome.text += result.text;
    outcome.stopped = result.stopped;
    if (result.stopped) return outcome;
  }
  outcome.text += checker.Flush();
  return outcome;
}

TEST(StopCheckerTest, FindsStopsAcrossDeltas) {
  EXPECT_EQ(Check({"END"}, false, {"abc E", "N", "D def"}), (Outcome{"abc ", 0}));
  EXPECT_EQ(Check({"END"}, true, {"abc E", "N", "D def"}), (Outcome{"abc END", 0}));
  EXPECT_EQ(Check({"END"}, false, {"abc E", "N", "d"}), (Outcome{"abc ENd", std::nullopt}));
  EXPECT_EQ(Check({"END"}, false, {"abc EN"}), (Outcome{"abc EN", std::nullopt}));
  EXPECT_EQ(Check({}, false, {"abc", "def"}), (Outcome{"abcdef", std::nullopt}));
  EXPECT_EQ(Check({"\n", "é"}, false, {"caf", "é\n"}), (Outcome{"caf", 1}));
  EXPECT_EQ(Check({"aab"}, false, {"a", "a", "a", "b"}), (Outcome{"a", 0}));
}

TEST(StopCheckerTest, TheFirstToBeCompleteEndsAndOfThoseTheLongest) {
  EXPECT_EQ(Check({"bcd", "c"}, false, {"abcd"}), (Outcome{"ab", 1}));
  EXPECT_EQ(Check({"c", "bc"}, false, {"abcd"}), (Outcome{"a", 1}));
  EXPECT_EQ(Check({"abcx", "c"}, false, {"ab", "cx"}), (Outcome{"ab", 1}));
}

TEST(StopCheckerTest, WhatMustNotStopMayBeginAStop) {
  StopChecker checker({"ab", "ba"}, false);
  EXPECT_EQ(checker.Add("abcab", /*may_stop=*/false).text, "abca");
  const StopChecker::Result result = checker.Add("ac");
  EXPECT_EQ(result.text, "");
  EXPECT_EQ(result.stopped, 1u);
}

TEST(StopCheckerTest, HoldsBackNoMoreThanMayBecomeAStop) {
  StopChecker checker({"<|end|>", "stop"}, false);
  EXPECT_EQ(checker.Add("hello <").text, "hello ");
  EXPECT_EQ(checker.Add("b>").text, "<b>");
  EXPECT_EQ(checker.Add(" sto").text, " ");
  EXPECT_EQ(checker.Add("ne s").text, "stone ");
  EXPECT_EQ(checker.Flush(), "s");
}

// The definition: of all occurrences the one that ends first, and of those the one that begins
// first.
Outcome ByDefinition(const std::vector<std::string>& stops, bool include, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::optional<size_t> stopped;
    for (size_t i = 0; i < stops.size(); ++i) {
      if (std::string_view(text).substr(0, end).ends_with(stops[i]) &&
          (!stopped || stops[i].size() > stops[*stopped].size())) {
        stopped = i;
      }
    }
    if (stopped) return {text.substr(0, include ? end : end - stops[*stopped].size()), stopped};
  }
  return {text, std::nullopt};
}

TEST(StopCheckerTest, AgreesWithTheDefinitionHoweverTheTextIsSplit) {
  std::mt19937 random(2);
  const auto word = [&](size_t longest) {
    std::string text(1 + random() % longest, 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % 2);
    return text;
  };
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops;
    for (size_t i = 0; i < 1 + random() % 3; ++i)
      stops.push_back(word(8) + (random() % 3 == 0 ? "c" : ""));
    const std::string text = word(24) + (random() % 2 == 0 ? "c" : "") + word(8);
    std::vector<std::string> deltas;
    for (size_t at = 0; at < text.size(); at += deltas.back().size()) {
      deltas.push_back(text.substr(at, 1 + random() % 5));
    }
    const bool include = random() % 2 == 0;
    ASSERT_EQ(Check(stops, include, deltas), ByDefinition(stops, include, text)) << text;
  }
}

// Shown text is never taken back: no shown text ends inside of the stop that comes.
TEST(StopCheckerTest, NeverLeaksTheBeginningOfAStop) {
  StopChecker checker({"###"}, false);
  std::string shown;
  for (const char* delta : {"a#", "b##", "c#", "#", "#"}) shown += checker.Add(delta).text;
  EXPECT_EQ(shown, "a#b##c");
}

}  // namespace
}  // namespace millrace
