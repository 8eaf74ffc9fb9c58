#include "loadtest/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

namespace millrace {
namespace {

Workload Make(const Options& options, const std::vector<TraceEntry>& trace = {}) {
  absl::StatusOr<Workload> workload = Workload::Make(options, trace);
  EXPECT_TRUE(workload.ok()) << workload.status();
  return *std::move(workload);
}

Request First(const Workload& workload, uint64_t index) {
  Session session = workload.Begin(index);
  return workload.Next(session);
}

int64_t Words(const std::string& text) { return 1 + std::count(text.begin(), text.end(), ' '); }

TEST(RandomWordsTest, TextsOfAsManyWordsAreAsLong) {
  std::set<std::string> texts;
  std::set<size_t> sizes;
  for (uint64_t i = 0; i < 50; ++i) {
    Random random(i, 0);
    const std::string text = RandomWords(kRandomWords, random);
    texts.insert(text);
    sizes.insert(text.size());
    std::istringstream words(text);
    std::set<std::string> distinct;
    for (std::string word; words >> word;) distinct.insert(word);
    EXPECT_EQ(distinct.size(), size_t{kRandomWords});
  }
  EXPECT_EQ(texts.size(), 50U);
  EXPECT_EQ(sizes.size(), 1U);
}

TEST(WorkloadTest, ASessionDependsOnTheSeedAndItsIndexAlone) {
  Options options;
  options.input_len = *Lengths::Parse("uniform:5:50");
  options.output_len = *Lengths::Parse("uniform:5:50");
  const Workload workload = Make(options);
  const Request seventh = First(workload, 7);
  First(workload, 3);
  EXPECT_EQ(First(workload, 7).prompt, seventh.prompt);
  EXPECT_EQ(First(workload, 7).max_tokens, seventh.max_tokens);
  EXPECT_NE(First(workload, 8).prompt, seventh.prompt);
  options.seed = 1;
  EXPECT_NE(First(Make(options), 7).prompt, seventh.prompt);
}

TEST(WorkloadTest, PromptsDifferFromTheirFirstWords) {
  const Workload workload = Make({});
  std::set<std::string> beginnings;
  for (uint64_t i = 0; i < 100; ++i) beginnings.insert(First(workload, i).prompt.substr(0, 20));
  EXPECT_EQ(beginnings.size(), 100U);
}

TEST(WorkloadTest, TheScaleTurnsTokensIntoWords) {
  Options options;
  options.input_len = Lengths(110);
  Workload workload = Make(options);
  workload.set_scale({.base = 10, .per_word = 2});
  EXPECT_EQ(Words(First(workload, 0).prompt), 50);
}

TEST(WorkloadTest, PrefixesAreShared) {
  Options options;
  options.prefix_len = 20;
  options.num_prefixes = 3;
  options.input_len = Lengths(5);
  const Workload workload = Make(options);
  std::set<std::string> prefixes;
  for (uint64_t i = 0; i < 100; ++i) {
    const std::string prompt = First(workload, i).prompt;
    EXPECT_EQ(Words(prompt), 25);
    size_t at = 0;
    for (int word = 0; word < 20; ++word) at = prompt.find(' ', at) + 1;
    prefixes.insert(prompt.substr(0, at));
  }
  EXPECT_EQ(prefixes.size(), 3U);
}

TEST(WorkloadTest, IdsHaveTheirExactNumber) {
  Options options;
  options.vocab_size = 10;
  options.prefix_len = 4;
  options.input_len = Lengths(6);
  const Workload workload = Make(options);
  const Request request = First(workload, 0);
  EXPECT_EQ(request.ids.size(), 10U);
  EXPECT_THAT(request.ids, testing::Each(testing::AllOf(testing::Ge(0), testing::Lt(10))));
  EXPECT_TRUE(
      std::equal(request.ids.begin(), request.ids.begin() + 4, First(workload, 1).ids.begin()));
}

TEST(WorkloadTest, ATurnHoldsWhatWasSaid) {
  Options options;
  options.turns = Lengths(3);
  options.endpoint = "/v1/chat/completions";
  const Workload workload = Make(options);
  Session session = workload.Begin(0);
  std::vector<std::string> asked;
  for (int turn = 0; turn < 3; ++turn) {
    ASSERT_TRUE(session.has_next());
    const Request request = workload.Next(session);
    ASSERT_EQ(request.messages.size(), size_t(2 * turn + 1));
    asked.push_back(request.messages.back().text);
    for (int before = 0; before < turn; ++before) {
      EXPECT_EQ(request.messages[size_t(2 * before)].text, asked[size_t(before)]);
      EXPECT_EQ(request.messages[size_t(2 * before + 1)].role, "assistant");
      EXPECT_EQ(request.messages[size_t(2 * before + 1)].text, "answer " + std::to_string(before));
    }
    std::vector<Continuation> next =
        workload.GoOn(session, {"answer " + std::to_string(turn), ""}, 10);
    ASSERT_EQ(next.size(), turn == 2 ? 0U : 1U);
    if (!next.empty()) session = std::move(next[0].session);
  }
  EXPECT_FALSE(session.has_next());

  options.endpoint = "/v1/completions";
  const Workload texts = Make(options);
  Session text = texts.Begin(0);
  const std::string first = texts.Next(text).prompt;
  text = texts.GoOn(std::move(text), {"ANSWER", ""}, 10)[0].session;
  EXPECT_THAT(texts.Next(text).prompt, testing::StartsWith(first + " ANSWER "));
}

TEST(WorkloadTest, SharesAreKept) {
  Options options;
  options.cancel_ratio = 0.3;
  options.slow_ratio = 0.1;
  options.output_len = Lengths(10);
  const Workload workload = Make(options);
  int cancelled = 0;
  int slow = 0;
  for (uint64_t i = 0; i < 10'000; ++i) {
    const Request request = First(workload, i);
    cancelled += request.cancel_after > 0 ? 1 : 0;
    slow += request.slow ? 1 : 0;
    EXPECT_LT(request.cancel_after, 10);
  }
  EXPECT_NEAR(cancelled, 3000, 200);
  EXPECT_NEAR(slow, 1000, 150);
}

TEST(WorkloadTest, LengthsOfTracesAndDataSetsHoldUnlessTheUserSaysOthers) {
  const std::vector<TraceEntry> trace = {{.input_len = 3, .output_len = 4}, {}};
  Options options;
  const Workload traced = Make(options, trace);
  EXPECT_EQ(Words(First(traced, 0).prompt), 3);
  EXPECT_EQ(First(traced, 0).max_tokens, 4);
  EXPECT_EQ(Words(First(traced, 1).prompt), 128);

  options.dataset = testing::TempDir() + "/loadtest_data.jsonl";
  std::ofstream(options.dataset)
      << "{\"prompt\": \"a\", \"output_tokens\": 9}\n{\"prompt\": \"b\"}\n";
  const Workload data = Make(options);
  EXPECT_EQ(First(data, 0).prompt, "a");
  EXPECT_EQ(First(data, 0).max_tokens, 9);
  EXPECT_EQ(First(data, 1).max_tokens, 128);
  EXPECT_EQ(First(data, 2).prompt, "a");  // the file again
  options.output_len = Lengths(5);
  EXPECT_EQ(First(Make(options), 0).max_tokens, 5);
}

}  // namespace
}  // namespace millrace
