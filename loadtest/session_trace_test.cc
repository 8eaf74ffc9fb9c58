#include "loadtest/session_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace millrace {
namespace {

using testing::HasSubstr;

SessionTrace Parse(std::string_view text) {
  absl::StatusOr<SessionTrace> trace = ParseSessionTrace(text);
  EXPECT_TRUE(trace.ok()) << trace.status();
  return trace.ok() ? *std::move(trace) : SessionTrace();
}

std::string ErrorOf(std::string_view text) {
  return std::string(ParseSessionTrace(text).status().message());
}

std::vector<std::string> Messages(const TraceTurn& turn) {
  std::vector<std::string> messages;
  for (const SharedJson& message : turn.messages) messages.push_back(*message);
  return messages;
}

constexpr std::string_view kTree =
    R"({"session_id": "a", "turns": [{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}], "max_tokens": 5, "tools": [{"type": "function"}]}, {"messages": [{"role": "assistant", "content": "A", "tool_calls": [{"id": "c"}]}, {"role": "tool", "tool_call_id": "c", "content": "R"}], "delay": 250, "extra": {"top_p": 0.5}, "model": "m", "forks": ["b", {"child": "c"}]}]}

{"session_id": "b", "turns": [{"text": "T"}]}
{"session_id": "c", "turns": [{"text": "U", "restart": true, "output_length": 7}]}
)";

TEST(SessionTraceTest, ReadsSessionsThatFork) {
  const SessionTrace trace = Parse(kTree);
  ASSERT_EQ(trace.sessions.size(), 3U);
  EXPECT_THAT(trace.roots, testing::ElementsAre(0));
  const TraceSession& root = trace.sessions[0];
  ASSERT_EQ(root.turns.size(), 2U);
  EXPECT_THAT(Messages(root.turns[0]), testing::ElementsAre(R"({"role":"system","content":"S"})",
                                                            R"({"role":"user","content":"Q"})"));
  EXPECT_EQ(root.turns[0].max_tokens, 5);
  EXPECT_EQ(*root.turns[0].tools, R"([{"type":"function"}])");
  EXPECT_EQ(root.turns[0].answer_before, nullptr);
  const TraceTurn& second = root.turns[1];
  EXPECT_THAT(*second.answer_before, HasSubstr(R"("content":"A")"));
  EXPECT_EQ(*second.calls_before, R"([{"id":"c"}])");
  EXPECT_THAT(Messages(second),
              testing::ElementsAre(R"({"role":"tool","tool_call_id":"c","content":"R"})"));
  EXPECT_EQ(second.delay, 0.25);
  EXPECT_EQ(*second.extra, R"({"top_p":0.5,"model":"m"})");
  ASSERT_EQ(root.forks.size(), 2U);
  EXPECT_EQ(root.forks[1].after, 1U);
  EXPECT_EQ(root.forks[1].child, 2U);
  EXPECT_THAT(Messages(trace.sessions[1].turns[0]),
              testing::ElementsAre(R"({"role":"user","content":"T"})"));
  EXPECT_TRUE(trace.sessions[2].turns[0].restarts);
  EXPECT_EQ(trace.sessions[2].turns[0].max_tokens, 7);
}

TEST(SessionTraceTest, WritesWhatItReads) {
  const std::string text = SessionTraceText(Parse(kTree));
  EXPECT_EQ(SessionTraceText(Parse(text)), text);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
  const SessionTrace again = Parse(text);
  EXPECT_EQ(again.sessions[0].turns[1].delay, 0.25);
  EXPECT_EQ(*again.sessions[0].turns[1].calls_before, R"([{"id":"c"}])");
  EXPECT_EQ(again.sessions[0].forks[1].child, 2U);
}

TEST(SessionTraceTest, ReadsATurnALine) {
  // Two sessions by turns. Lines repeat their history, or go on without it.
  const SessionTrace trace = Parse(
      R"({"session_id": "h", "timestamp": 100, "output_length": 3, "messages": [{"role": "user", "content": "1"}]}
{"session_id": "d", "message_mode": "delta", "messages": [{"role": "user", "content": "x"}]}
{"session_id": "h", "timestamp": 1600, "messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}, {"role": "user", "content": "3"}]}
{"session_id": "d", "message_mode": "delta", "delay": 40, "messages": [{"role": "user", "content": "y"}]}
{"session_id": "h", "delay": 10, "messages": [{"role": "user", "content": "a summary"}]})");
  ASSERT_EQ(trace.sessions.size(), 2U);
  EXPECT_THAT(trace.roots, testing::ElementsAre(0, 1));
  const TraceSession& history = trace.sessions[0];
  ASSERT_EQ(history.turns.size(), 3U);
  EXPECT_EQ(history.turns[0].max_tokens, 3);
  EXPECT_EQ(*history.turns[1].answer_before, R"({"role":"assistant","content":"2"})");
  EXPECT_THAT(Messages(history.turns[1]), testing::ElementsAre(R"({"role":"user","content":"3"})"));
  EXPECT_EQ(history.turns[1].delay, 1.5);
  EXPECT_FALSE(history.turns[1].restarts);
  // The history was written anew.
  EXPECT_TRUE(history.turns[2].restarts);
  EXPECT_EQ(history.turns[2].delay, 0.01);
  const TraceSession& delta = trace.sessions[1];
  ASSERT_EQ(delta.turns.size(), 2U);
  EXPECT_EQ(delta.turns[1].answer_before, nullptr);
  EXPECT_EQ(delta.turns[1].delay, 0.04);
}

TEST(SessionTraceTest, TimestampsMayCountFrom1970) {
  const SessionTrace trace = Parse(
      R"({"session_id": "s", "timestamp": 1764000000000, "messages": [{"role": "user"}]}
{"session_id": "s", "timestamp": null, "message_mode": "history", "messages": [{"role": "user"}]}
{"session_id": "s", "timestamp": 1764000002500, "delay": null, "messages": [{"role": "user"}]})");
  ASSERT_EQ(trace.sessions.size(), 1U);
  const std::vector<TraceTurn>& turns = trace.sessions[0].turns;
  ASSERT_EQ(turns.size(), 3U);
  EXPECT_EQ(turns[1].delay, 0);
  EXPECT_EQ(turns[2].delay, 2.5);
}

TEST(SessionTraceTest, RefusesDeepNesting) {
  // There are five levels around a content.
  const auto line = [](size_t depth, std::string_view open, std::string_view inner,
                       std::string_view close) {
    std::string text =
        R"({"session_id": "s", "turns": [{"messages": [{"role": "user", "content": )";
    for (size_t i = 0; i < depth; ++i) text += open;
    text += inner;
    for (size_t i = 0; i < depth; ++i) text += close;
    return text + "}]}]}";
  };
  constexpr std::string_view kError = "line 1: is nested deeper than 64 levels";
  EXPECT_EQ(Parse(line(59, "[", "", "]")).sessions.size(), 1U);
  EXPECT_EQ(ErrorOf(line(60, "[", "", "]")), kError);
  EXPECT_EQ(Parse(line(59, R"({"a":)", "1", "}")).sessions.size(), 1U);
  EXPECT_EQ(ErrorOf(line(60, R"({"a":)", "1", "}")), kError);
  EXPECT_EQ(ErrorOf(line(200000, "[", "", "]")), kError);
  EXPECT_EQ(ErrorOf(line(200000, R"({"a":)", "1", "}")), kError);
  EXPECT_EQ(ErrorOf(std::string(200000, '[')), kError);
}

TEST(SessionTraceTest, CutsConversationsBeforeTheirAnswers) {
  const SessionTrace trace = Parse(
      R"({"id": "v", "tools": [], "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "12345678"}, {"role": "assistant", "content": "more"}, {"role": "user", "content": "r"}, {"role": "assistant", "content": "end"}]})");
  ASSERT_EQ(trace.sessions.size(), 1U);
  const std::vector<TraceTurn>& turns = trace.sessions[0].turns;
  ASSERT_EQ(turns.size(), 2U);
  EXPECT_EQ(turns[0].messages.size(), 2U);
  EXPECT_EQ(turns[0].max_tokens, 3);  // of ten bytes, with the quotes
  EXPECT_THAT(*turns[1].answer_before, HasSubstr("12345678"));
  EXPECT_EQ(turns[1].messages.size(), 2U);
}

TEST(SessionTraceTest, ErrorsNameTheLineAndTheField) {
  const std::string good = R"({"session_id": "g", "turns": [{"text": "a"}]})";
  const auto turn = [](std::string_view fields) {
    return R"({"session_id": "s", "turns": [{)" + std::string(fields) + "}]}";
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "at least one session"},
      {"{", "line 1: expected a JSON object"},
      {good + "\n\n[]", "line 3: expected a JSON object"},
      {R"({"prompt": "x"})", "line 1: turns or messages: expected one of them"},
      {R"({"turns": [{"text": "a"}]})", "line 1: session_id: expected a text that is not empty"},
      {R"({"session_id": 3, "turns": [{"text": "a"}]})", "session_id: expected a text"},
      {good + "\n" + good, "line 2: session_id: expected another one than \"g\" again"},
      {R"({"session_id": "s", "turns": []})", "turns: expected an array of at least one turn"},
      {R"({"session_id": "s", "turns": [1]})", "turns[0]: expected an object"},
      {R"({"session_id": "s", "turns": [{"text": "a"}], "spawns": []})",
       "there is no field \"spawns\"; allowed: session_id, turns"},
      {turn(R"("max_token": 1)"), "turns[0]: there is no field \"max_token\"; allowed: messages"},
      {turn(""), "turns[0]: messages: expected an array of at least one message"},
      {turn(R"("messages": [])"), "messages: expected an array of at least one message"},
      {turn(R"("messages": [{"role": "user"}, {"content": "a"}])"), "messages[1].role: expected"},
      {turn(R"("text": 1)"), "turns[0]: text: expected a text"},
      {turn(R"("text": "a", "messages": [])"), "text: expected a text, without messages"},
      {turn(R"("text": "a", "max_tokens": 0)"), "max_tokens: expected a whole number from 1 to"},
      {turn(R"("text": "a", "output_length": 1.5)"), "output_length: expected a whole number"},
      {turn(R"("text": "a", "delay": -1)"), "delay: expected a number of milliseconds"},
      {turn(R"("text": "a", "tools": {})"), "tools: expected an array"},
      {turn(R"("text": "a", "extra": [])"), "extra: expected an object"},
      {turn(R"("text": "a", "extra": {"messages": []})"), "extra.messages: expected no such"},
      {turn(R"("text": "a", "restart": 1)"), "restart: expected true or false"},
      {turn(R"("text": "a", "forks": "b")"), "forks: expected an array"},
      {turn(R"("text": "a", "forks": [1])"), "forks[0]: expected a session's id"},
      {turn(R"("text": "a", "forks": [{"child": "b", "join": 1}])"), "forks[0]: there is no field"},
      {turn(R"("text": "a", "forks": ["b"])"),
       "line 1: turns[0].forks[0]: there is no session \"b\""},
      {turn(R"("text": "a", "forks": ["b"]}, {"text": "c")"),
       "turns[0]: forks[0]: expected {\"child\": ID, \"background\": true}"},
      {turn(R"("text": "a", "forks": ["g", "g"])") + "\n" + good,
       "line 1: turns[0].forks[1]: session \"g\" goes on from another turn already"},
      {turn(R"("text": "a", "forks": ["s"])"), "forks of session \"s\" go in a circle"},
      {R"({"session_id": "s", "messages": [{"role": "user"}], "message_mode": "x"})",
       "message_mode: expected history or delta"},
      {R"({"session_id": "s", "messages": [{"role": "user"}]}
{"session_id": "s", "messages": [{"role": "user"}], "message_mode": "delta"})",
       "line 2: message_mode: expected that of the session's other lines"},
      {R"({"session_id": "s", "messages": [{"role": "user"}], "timestamp": 1e16})",
       "timestamp: expected a number of milliseconds from 0 to 1e+15"},
      {R"({"session_id": "s", "messages": [{"role": "user"}], "delay": 1e11})",
       "delay: expected a number of milliseconds from 0 to 1e+10"},
      {R"({"session_id": "s", "messages": [{"role": "user"}], "hash_ids": []})",
       "there is no field \"hash_ids\""},
      {R"({"id": "s", "messages": {}})", "messages: expected an array"},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_THAT(ErrorOf(text), HasSubstr(expected)) << text;
  }
}

}  // namespace
}  // namespace millrace
