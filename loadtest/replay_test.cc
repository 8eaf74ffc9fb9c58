#include "loadtest/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "loadtest/http_request.h"
#include "loadtest/workload.h"

namespace millrace {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

std::shared_ptr<const SessionTrace> Trace(std::string_view text) {
  absl::StatusOr<SessionTrace> trace = ParseSessionTrace(text);
  EXPECT_TRUE(trace.ok()) << trace.status();
  return std::make_shared<const SessionTrace>(*std::move(trace));
}

// Returns the history as "role:content".
std::vector<std::string> Said(const std::vector<SharedJson>& history) {
  std::vector<std::string> said;
  for (const SharedJson& message : history) {
    const json read = json::parse(*message);
    said.push_back(read["role"].get<std::string>() + ":" + read.value("content", ""));
  }
  return said;
}

constexpr std::string_view kTree =
    R"({"session_id": "a", "turns": [{"text": "1", "tools": [1]}, {"messages": [{"role": "assistant", "content": "old", "tool_calls": [{"id": "c"}]}, {"role": "tool", "content": "R"}], "delay": 2000, "forks": [{"child": "b", "background": true}]}, {"text": "3", "tools": [2]}]}
{"session_id": "b", "turns": [{"text": "B", "delay": 500}, {"text": "fresh", "restart": true}]})";

TEST(ReplayTest, AnswersComeBackAndBranchesShareTheirHistory) {
  ReplayPath path(Trace(kTree), 0);
  ASSERT_TRUE(path.has_next());
  path.Next();
  EXPECT_THAT(Said(path.history()), ElementsAre("user:1"));

  auto paths = path.GoOn({"said", "thought"}, {.delay_ratio = 2});
  ASSERT_EQ(paths.size(), 1U);
  EXPECT_EQ(paths[0].delay, 4);
  path = paths[0].path;
  path.Next();
  EXPECT_THAT(Said(path.history()), ElementsAre("user:1", "assistant:said", "tool:R"));
  // The call that the result names stands in the answer, and the thought does not.
  EXPECT_EQ(*path.history()[1],
            R"({"role":"assistant","content":"said","tool_calls":[{"id":"c"}]})");
  EXPECT_EQ(*path.tools(), "[1]");

  paths = path.GoOn({"again", ""}, {});
  ASSERT_EQ(paths.size(), 2U);
  EXPECT_EQ(paths[1].delay, 0.5);
  ReplayPath own = paths[0].path;
  ReplayPath child = paths[1].path;
  own.Next();
  child.Next();
  EXPECT_THAT(Said(own.history()),
              ElementsAre("user:1", "assistant:said", "tool:R", "assistant:again", "user:3"));
  EXPECT_THAT(Said(child.history()),
              ElementsAre("user:1", "assistant:said", "tool:R", "assistant:again", "user:B"));
  EXPECT_EQ(own.history()[0], child.history()[0]);  // the same text in memory
  EXPECT_EQ(*own.tools(), "[2]");
  EXPECT_EQ(*child.tools(), "[1]");

  EXPECT_FALSE(own.has_next());
  EXPECT_TRUE(own.GoOn({"end", ""}, {}).empty());
  child = child.GoOn({"x", ""}, {})[0].path;
  child.Next();
  EXPECT_THAT(Said(child.history()), ElementsAre("user:fresh"));
  EXPECT_FALSE(child.has_next());
}

TEST(ReplayTest, RecordedAnswersAndThoughtsComeBackIfAsked) {
  ReplayPath path(Trace(kTree), 0);
  path.Next();
  ReplayPath recorded = path.GoOn({"said", "t"}, {.recorded_answers = true})[0].path;
  recorded.Next();
  EXPECT_THAT(*recorded.history()[1], HasSubstr("\"old\""));
  // Where the trace has no answer, the server's stands.
  recorded = recorded.GoOn({"said", ""}, {.recorded_answers = true})[0].path;
  EXPECT_THAT(Said(recorded.history()).back(), "assistant:said");
  const ReplayPath thinking = path.GoOn({"said", "t"}, {.keep_reasoning = true})[0].path;
  EXPECT_EQ(json::parse(*thinking.history()[1])["reasoning_content"], "t");
}

Options Synthetic() {
  Options options;
  options.command = LoadCommand::kReplay;
  options.endpoint = "/v1/chat/completions";
  options.turns = Lengths(4);
  options.prefix_len = 30;
  options.input_len = *Lengths::Parse("uniform:5:9");
  options.output_len = *Lengths::Parse("uniform:2:4");
  options.num_prompts = 10;
  return options;
}

TEST(SessionGeneratorTest, ASessionDependsOnTheSeedAndItsIndexAlone) {
  Options options = Synthetic();
  options.tools = 3;
  options.branches = 2;
  const SessionGenerator generator(options);
  const std::string seventh = SessionTraceText(generator.Make(7));
  generator.Make(3);
  EXPECT_EQ(SessionTraceText(generator.Make(7)), seventh);
  EXPECT_NE(SessionTraceText(generator.Make(8)), seventh);
  options.seed = 1;
  EXPECT_NE(SessionTraceText(SessionGenerator(options).Make(7)), seventh);
  // What it makes is a trace as files have them.
  EXPECT_EQ(SessionTraceText(*Trace(seventh)), seventh);
}

TEST(SessionGeneratorTest, SessionsHaveWhatTheFlagsSay) {
  Options options = Synthetic();
  options.tools = 2;
  options.result_len = Lengths(50);
  options.tool_time = 0.5;
  SessionTrace trace = SessionGenerator(options).Make(0);
  ASSERT_EQ(trace.sessions.size(), 1U);
  const std::vector<TraceTurn>& turns = trace.sessions[0].turns;
  ASSERT_EQ(turns.size(), 4U);
  ASSERT_EQ(turns[0].messages.size(), 2U);
  EXPECT_EQ(json::parse(*turns[0].tools).size(), 2U);
  // All have the same system prompt, of which there is one.
  EXPECT_EQ(*turns[0].messages[0],
            *SessionGenerator(options).Make(1).sessions[0].turns[0].messages[0]);
  for (size_t i = 1; i < turns.size(); ++i) {
    const json answer = json::parse(*turns[i].answer_before);
    const json result = json::parse(*turns[i].messages[0]);
    EXPECT_EQ(result["role"], "tool");
    EXPECT_EQ(result["tool_call_id"], answer["tool_calls"][0]["id"]);
    const std::string text = result["content"];
    EXPECT_EQ(std::count(text.begin(), text.end(), ' '), 49);
    EXPECT_EQ(turns[i].delay, 0.5);
  }

  options.tools = 0;
  options.think_time = 3;
  options.branches = 3;
  trace = SessionGenerator(options).Make(0);
  ASSERT_EQ(trace.sessions.size(), 4U);
  const TraceSession& root = trace.sessions[0];
  ASSERT_EQ(root.forks.size(), 3U);
  for (const TraceSession::Fork& fork : root.forks) {
    const TraceSession& child = trace.sessions[fork.child];
    EXPECT_EQ(root.turns.size() + child.turns.size(), 4U);
    EXPECT_EQ(*child.turns[0].answer_before, *trace.sessions[1].turns[0].answer_before);
    EXPECT_EQ(child.turns[0].delay, 3);
  }
  EXPECT_NE(*trace.sessions[1].turns[0].messages[0], *trace.sessions[2].turns[0].messages[0]);
  options.think_sigma = 1;
  EXPECT_NE(SessionGenerator(options).Make(0).sessions[1].turns[0].delay, 3);
}

TEST(ReplayTest, RequestsHaveTheHistoryToolsAndFieldsOfTheTrace) {
  Options options = Synthetic();
  options.model = "m";
  options.temperature = 1;
  options.seed = 5;
  const Workload workload = *Workload::Make(
      options, {},
      Trace(
          R"({"session_id": "a", "turns": [{"messages": [{"role": "system", "content": "\u00e9", "name": "n"}, {"role": "user", "content": "q"}], "tools": [{"z": 1, "a": 2}], "extra": {"top_p": 0.5}}]})"));
  Session session = workload.Begin(0);
  const Request request = workload.Next(session);
  const HttpRequestWriter writer(options, *ParseUrl("http://h:1"));
  const std::string body = writer.Body(request);
  const json read = json::parse(body);
  EXPECT_EQ(read["messages"][0]["name"], "n");
  EXPECT_EQ(read["messages"][1]["content"], "q");
  EXPECT_EQ(read["top_p"], 0.5);
  EXPECT_EQ(read["seed"], 5);
  EXPECT_EQ(read["stream"], true);
  EXPECT_THAT(body, HasSubstr(R"("tools":[{"z":1,"a":2}])"));
  EXPECT_NE(request.beginning, 0U);
  EXPECT_LT(request.own_share, 0.5);
  EXPECT_TRUE(workload.GoOn(session, {"x", ""}, 9).empty());
}

TEST(ReplayTest, BranchesHaveDrawsOfTheirOwn) {
  Options options = Synthetic();
  options.branches = 2;
  options.cancel_ratio = 1;
  options.output_len = Lengths(1000);
  const Workload workload = *Workload::Make(options, {});
  Session session = workload.Begin(4);
  std::vector<Continuation> next;
  while (next.size() < 2) {
    workload.Next(session);
    next = workload.GoOn(session, {"x", ""}, 20);
    ASSERT_FALSE(next.empty());
    session = next[0].session;
  }
  EXPECT_EQ(next[0].session.turn(), next[1].session.turn());
  EXPECT_EQ(next[1].session.prompt_tokens(), 20);
  const Request first = workload.Next(next[0].session);
  const Request second = workload.Next(next[1].session);
  EXPECT_NE(first.cancel_after, second.cancel_after);
  // The first brings the answer that both go on from.
  ASSERT_EQ(second.history.size(), first.history.size());
  const auto own = static_cast<double>(second.history.back()->size());
  const auto answer = static_cast<double>(second.history[second.history.size() - 2]->size());
  EXPECT_EQ(first.own_share, 1);
  EXPECT_DOUBLE_EQ(second.own_share, own / (own + answer));
}

}  // namespace
}  // namespace millrace
