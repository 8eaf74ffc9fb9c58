// Answers, the clients that leave in the middle of them, and the endpoint's end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/strings.h"
#include "server/http/endpoint_test_util.h"
#include "server/http/json/json_reader.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

class ConnectionTest : public testing::Test, protected TestEndpoint {};

TEST_F(ConnectionTest, AnswersWholeAndKeepsTheConnection) {
  Start();
  engine().set_script(SayHello);
  RawClient client(port());
  for (int i = 0; i < 3; ++i) {
    client.Request("POST", "/v1/completions", kWholeBody);
    const ClientResponse response = client.Read();
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.headers.at("content-type"), "application/json");
    EXPECT_EQ(response.headers.at("connection"), "keep-alive");
    EXPECT_EQ(Json::parse(response.body)["choices"][0]["text"], "Hello");
  }
}

TEST_F(ConnectionTest, StreamsEachEventAsItComes) {
  Start();
  RawClient client(port());
  client.Request("POST", "/v1/completions", kStreamBody);
  const auto stream = engine().WaitStream();
  stream->Push(TextEvent("one"));
  EXPECT_EQ(client.ReadHeader().headers.at("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_THAT(client.ReadSome(), HasSubstr("one"));  // before the next is even there
  stream->Push(TextEvent("two"));
  EXPECT_THAT(client.ReadSome(), HasSubstr("two"));
  stream->Push(FinishEvent());
  std::string rest;
  while (rest.find("0\r\n\r\n") == rest.npos) rest += client.ReadSome();
  EXPECT_THAT(rest, HasSubstr("data: [DONE]\n\n"));
  client.Request("GET", "/livez");
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(ConnectionTest, ManyStreamsAtOnce) {
  Start();
  constexpr int kStreams = 24;
  constexpr int kEvents = 200;
  std::vector<std::thread> clients;
  std::atomic<int> complete = 0;
  for (int i = 0; i < kStreams; ++i) {
    clients.emplace_back([this, &complete] {
      const ClientResponse response = Ask("POST", "/v1/completions", kStreamBody);
      size_t lines = 0;
      for (size_t at = 0; (at = response.body.find("data: ", at)) != response.body.npos; ++at) {
        ++lines;
      }
      complete += lines == kEvents + 2;
    });
  }
  engine().WaitStream(kStreams - 1);
  for (int e = 0; e < kEvents; ++e) {
    for (int i = 0; i < kStreams; ++i) engine().WaitStream(i)->Push(TextEvent("x"));
  }
  for (int i = 0; i < kStreams; ++i) engine().WaitStream(i)->Push(FinishEvent());
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(complete, kStreams);
}

TEST_F(ConnectionTest, ARefusalKeepsItsStatusAlsoForAStream) {
  Start();
  engine().set_script([](const GenerateRequest&, ScriptedStream& stream) {
    stream.Push(ErrorEvent(WithRetryAfter(absl::ResourceExhaustedError("busy"), absl::Seconds(7))));
  });
  const ClientResponse response = Ask("POST", "/v1/completions", kStreamBody);
  EXPECT_EQ(response.status, 429);
  EXPECT_EQ(response.headers.at("retry-after"), "7");
  EXPECT_EQ(Json::parse(response.body)["error"]["type"], "rate_limit_error");
}

TEST_F(ConnectionTest, AnErrorInsideAStreamIsItsLastEventAndTheConnectionStays) {
  Start();
  RawClient client(port());
  client.Request("POST", "/v1/completions", kStreamBody);
  const auto stream = engine().WaitStream();
  stream->Push(TextEvent("x"));
  stream->Push(ErrorEvent(absl::InternalError("NaN")));
  const ClientResponse response = client.Read();
  EXPECT_THAT(response.body, HasSubstr("data: {\"error\":{\"message\":\"NaN\""));
  EXPECT_EQ(response.body.find("[DONE]"), response.body.npos);
  EXPECT_EQ(response.headers.at("connection"), "keep-alive");
  client.Request("GET", "/livez");
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(ConnectionTest, AQuietStreamGetsCommentsAndItsErrorComesInIt) {
  HttpLimits limits;
  limits.ping_interval = absl::Milliseconds(1);
  Start(limits);
  const char* const chat = R"({"messages": [{"role": "user", "content": "p"}],
                               "stream": true, "max_tokens": 4})";
  const char* const response = R"({"input": "p", "stream": true})";
  struct Case {
    const char* path;
    std::string body;
    const char* first;  // event
    const char* error;
  };
  size_t streams = 0;
  for (const Case& c :
       {Case{"/v1/completions", std::string(kStreamBody), "data: {\"id\"", "data: {\"error\""},
        Case{"/v1/chat/completions", chat, "data: {\"id\"", "data: {\"error\""},
        Case{"/v1/messages", chat, "event: message_start", "event: error"},
        Case{"/v1/responses", response, "event: response.created", "event: error"}}) {
    for (const bool fails : {false, true}) {
      RawClient client(port());
      client.Request("POST", c.path, c.body);
      const auto stream = engine().WaitStream(streams++);
      const ClientResponse header = client.ReadHeader();
      EXPECT_EQ(header.status, 200) << c.path;
      EXPECT_EQ(header.headers.at("content-type"), "text/event-stream; charset=utf-8");
      const std::string ping = "00000008\r\n: ping\n\n\r\n";
      std::string text;
      while (text.size() < 2 * ping.size()) text += client.ReadSome();
      EXPECT_EQ(text.substr(0, 2 * ping.size()), ping + ping) << c.path;
      if (fails) {
        stream->Push(ErrorEvent(absl::DeadlineExceededError("too late")));
      } else {
        stream->Push(TextEvent("x"));
        while (text.find("\"x\"") == text.npos) text += client.ReadSome();
        stream->Push(FinishEvent());
      }
      while (text.find("\r\n0\r\n\r\n") == text.npos) text += client.ReadSome();
      EXPECT_EQ(text.find(c.error) != text.npos, fails) << c.path << text;
      // Where a stream has a first event, it comes before the error, too.
      const bool begins = !fails || std::string_view(c.first).substr(0, 5) == "event";
      EXPECT_EQ(text.find(c.first) != text.npos, begins) << c.path << text;
      client.Request("GET", "/livez");
      EXPECT_EQ(client.Read().status, 200) << c.path;
    }
  }
}

TEST_F(ConnectionTest, AnAnswerThatIsNotStreamedGetsNoComment) {
  HttpLimits limits;
  limits.ping_interval = absl::Milliseconds(1);
  Start(limits);
  RawClient quiet(port());
  quiet.Request("POST", "/v1/completions", kWholeBody);
  const auto whole = engine().WaitStream(0);
  // Ticks go over both connections: when the stream has its comments, the other one has had its
  // turns.
  RawClient client(port());
  client.Request("POST", "/v1/completions", kStreamBody);
  std::string text;
  while (text.size() < 100) text += client.ReadSome();
  whole->Push(ErrorEvent(absl::ResourceExhaustedError("busy")));
  EXPECT_EQ(quiet.Read().status, 429);
}

// ---- Clients that leave ----

TEST_F(ConnectionTest, AClientThatLeavesCancels) {
  Start();
  struct Case {
    std::string_view body;
    bool after_first;
    bool reset;
  };
  size_t n = 0;
  for (const Case& c : {Case{kWholeBody, false, false}, Case{kWholeBody, false, true},
                        Case{kWholeBody, true, false}, Case{kStreamBody, false, false},
                        Case{kStreamBody, true, false}, Case{kStreamBody, true, true}}) {
    RawClient client(port());
    client.Request("POST", "/v1/completions", c.body);
    const auto stream = engine().WaitStream(n++);
    if (c.after_first) stream->Push(TextEvent("x"));
    if (c.reset) {
      client.Reset();
    } else {
      client.Close();
    }
    EXPECT_EQ(stream->WaitCancelled(), CancelReason::kClientGone);
  }
}

TEST_F(ConnectionTest, AClientThatLeavesWithRequestsAheadIsSeenToo) {
  Start();
  RawClient client(port());
  client.Request("POST", "/v1/completions", kStreamBody);
  const auto stream = engine().WaitStream();
  client.Request("GET", "/livez");
  client.Close();
  EXPECT_EQ(stream->WaitCancelled(), CancelReason::kClientGone);
}

TEST_F(ConnectionTest, AClientThatDoesNotReadHoldsUpNoOtherAndIsClosed) {
  Start({.write_timeout = absl::Milliseconds(300)}, "", /*threads=*/1);
  RawClient slow(port(), /*receive_buffer=*/4096);
  slow.Request("POST", "/v1/completions", kStreamBody);
  const auto stream = engine().WaitStream();
  // More than the system's own buffers take (4 MiB).
  for (int i = 0; i < 200; ++i) stream->Push(TextEvent(std::string(100'000, 'x'), {1}));
  EXPECT_EQ(Ask("GET", "/livez").status, 200);
  EXPECT_EQ(stream->WaitCancelled(), CancelReason::kClientGone);
  EXPECT_GT(stream->unread(), 20u);  // the endpoint took no more than it could pass on
}

TEST_F(ConnectionTest, WhatComesWhileTheSocketIsFullIsSentOnceItIsNot) {
  Start({}, "", /*threads=*/1);
  RawClient slow(port(), /*receive_buffer=*/4096);
  slow.Request("POST", "/v1/completions", kStreamBody);
  const auto stream = engine().WaitStream();
  stream->Push(TextEvent(std::string(16 << 20, 'x'), {1}));  // more than the system's buffers take
  while (stream->unread() > 0) std::this_thread::yield();
  EXPECT_EQ(Ask("GET", "/livez").status, 200);
  stream->Push(TextEvent("after"));
  EXPECT_EQ(Ask("GET", "/livez").status, 200);  // the thread has seen it
  std::string text;
  while (text.find("after") == text.npos) {
    const std::string more = slow.ReadSome();
    ASSERT_FALSE(more.empty());
    text = text.substr(text.size() - std::min<size_t>(text.size(), 8)) + more;
  }
  stream->Push(FinishEvent());
}

// A stream that repeats a long text has its events polled in small parts.
TEST_F(ConnectionTest, AStreamWithMuchToSendLeavesOthersTheirTurns) {
  Start({}, "", /*threads=*/1);
  RawClient large(port()), other(port()), holder(port());
  large.Request("POST", "/v1/responses",
                StrCat(R"({"input": "p", "stream": true, "instructions": ")",
                       std::string(400'000, 'i'), "\"}"));
  const auto stream = engine().WaitStream();
  std::promise<void> entered, gate;
  size_t served = 0, unread = 0;
  engine().set_script([&](const GenerateRequest& request, ScriptedStream& answer) {
    if (++served == 1) {
      entered.set_value();
      gate.get_future().wait();
    } else {
      unread = stream->unread();
    }
    SayHello(request, answer);
  });
  for (RawClient* client : {&other, &holder}) {  // the thread knows them
    client->Request("GET", "/livez");
    EXPECT_EQ(client->Read().status, 200);
  }
  holder.Request("POST", "/v1/completions", kWholeBody);
  entered.get_future().wait();
  std::thread reader([&large] {
    for (std::string end; end.find("0\r\n\r\n") == end.npos;) {
      const std::string more = large.ReadSome();
      if (more.empty()) return;
      end = end.substr(end.size() - std::min<size_t>(end.size(), 8)) + more;
    }
  });
  // The other one's request comes while the thread is held, after the events of the stream.
  for (int i = 0; i < 10; ++i) stream->Push(TextEvent(std::string(100'000, 'x'), {1}));
  other.Request("POST", "/v1/completions", kWholeBody);
  gate.set_value();
  EXPECT_EQ(other.Read().status, 200);
  EXPECT_GT(unread, 0u);
  EXPECT_EQ(holder.Read().status, 200);
  stream->Push(FinishEvent());
  reader.join();
}

// ---- The end ----

TEST_F(ConnectionTest, WhileDrainingRunningAnswersFinishAndNewOnesAreRefused) {
  Start();
  RawClient running(port());
  running.Request("POST", "/v1/completions", kStreamBody);
  const auto stream = engine().WaitStream();
  stream->Push(TextEvent("x"));
  running.ReadHeader();
  frontend().is_draining = true;
  RawClient late(port());
  late.Request("POST", "/v1/completions", kWholeBody);
  const ClientResponse refused = late.Read();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("retry-after"), "5");
  EXPECT_EQ(refused.headers.at("connection"), "close");
  EXPECT_EQ(Ask("GET", "/readyz").status, 503);
  EXPECT_EQ(Ask("GET", "/livez").status, 200);
  stream->Push(FinishEvent());
  std::string rest;
  while (rest.find("[DONE]") == rest.npos) rest += running.ReadSome();
}

TEST_F(ConnectionTest, ANewConnectionsFirstRequestIsServedWhenListeningHasStopped) {
  Start();
  RawClient fresh(port());
  RawClient used(port());
  used.Request("GET", "/livez");
  EXPECT_EQ(used.Read().status, 200);  // both are accepted, in this order
  server().DropHandshakes();
  server().StopListening();
  EXPECT_TRUE(used.AtEnd());
  fresh.Request("GET", "/livez");
  EXPECT_EQ(fresh.Read().status, 200);
  RawClient silent(port());  // refused
  EXPECT_TRUE(silent.AtEnd());
}

TEST_F(ConnectionTest, StopDoesNotWaitForAConnectionsFirstRequest) {
  Start();
  RawClient fresh(port());
  EXPECT_EQ(Ask("GET", "/livez").status, 200);
  server().Stop(absl::InfiniteDuration());
  EXPECT_TRUE(fresh.AtEnd());
}

TEST_F(ConnectionTest, StopClosesIdleConnectionsAndWaitsForAnswers) {
  Start();
  RawClient idle(port());
  idle.Request("GET", "/livez");
  idle.Read();
  RawClient running(port());
  running.Request("POST", "/v1/completions", kWholeBody);
  const auto stream = engine().WaitStream();
  std::thread stop([this] { server().Stop(absl::Seconds(20)); });
  EXPECT_TRUE(idle.AtEnd());
  stream->Push(FinishEvent(FinishReason::kStop, "whole"));
  const ClientResponse response = running.Read();
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.headers.at("connection"), "close");
  running.Close();
  stop.join();
  EXPECT_FALSE(stream->cancelled());
}

TEST_F(ConnectionTest, StopEndsWhatDoesNotEndByItself) {
  Start();
  RawClient running(port());
  running.Request("POST", "/v1/completions", kStreamBody);
  const auto stream = engine().WaitStream();
  server().Stop(absl::ZeroDuration());
  EXPECT_EQ(stream->cancelled(), CancelReason::kClientGone);
  stream->Push(TextEvent("nobody hears this"));
  EXPECT_TRUE(running.AtEnd());
}

TEST_F(ConnectionTest, ATakenPortOrABadAddressIsAnError) {
  Start();
  HttpServer taken(frontend(), {.port = port()});
  EXPECT_EQ(taken.Start().status().code(), absl::StatusCode::kUnavailable);
  HttpServer bad(frontend(), {.host = "not an address"});
  EXPECT_EQ(bad.Start().status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace
