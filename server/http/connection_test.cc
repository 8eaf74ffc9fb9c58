// The door as a client sees it, down to its bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/strings.h"
#include "server/http/http_client_test_util.h"
#include "server/http/http_server.h"
#include "server/http/json_reader.h"
#include "server/http/scripted_engine_test_util.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::string_view kWhole = R"({"prompt": "p"})";
constexpr std::string_view kStream = R"({"prompt": "p", "stream": true})";

class DoorTest : public testing::Test {
 protected:
  void Start(HttpLimits limits = {}, std::string key = "", int threads = 2) {
    frontend_ = std::make_unique<ScriptedFrontend>(std::move(key));
    server_ =
        std::make_unique<HttpServer>(*frontend_, HttpOptions{.threads = threads, .limits = limits});
    auto port = server_->Start();
    ASSERT_TRUE(port.ok()) << port.status();
    port_ = *port;
  }

  ScriptedEngine& engine() { return frontend_->engine; }

  // One request on a connection of its own.
  ClientResponse Ask(std::string_view method, std::string_view path, std::string_view body = "",
                     std::string_view headers = "") {
    RawClient client(port_);
    client.Request(method, path, body, headers);
    return client.Read(method == "HEAD");
  }
  // Sends bytes as they are, and returns the status that comes back.
  int Raw(std::string_view bytes) {
    RawClient client(port_);
    client.Send(bytes);
    const ClientResponse response = client.Read();
    if (response.status >= 400) {
      EXPECT_TRUE(Json::accept(response.body)) << response.body;
      EXPECT_TRUE(Json::parse(response.body)["error"]["message"].is_string());
    }
    return response.status;
  }

  std::unique_ptr<ScriptedFrontend> frontend_;
  std::unique_ptr<HttpServer> server_;
  uint16_t port_ = 0;
};

void Finish(const GenerateRequest&, ScriptedStream& stream) {
  stream.Push(TextEvent("Hel"));
  stream.Push(FinishEvent(FinishReason::kStop, "lo"));
}

TEST_F(DoorTest, AnswersWholeAndKeepsTheConnection) {
  Start();
  engine().set_script(Finish);
  RawClient client(port_);
  for (int i = 0; i < 3; ++i) {
    client.Request("POST", "/v1/completions", kWhole);
    const ClientResponse response = client.Read();
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.headers.at("content-type"), "application/json");
    EXPECT_EQ(response.headers.at("connection"), "keep-alive");
    EXPECT_EQ(Json::parse(response.body)["choices"][0]["text"], "Hello");
  }
}

TEST_F(DoorTest, StreamsEachEventAsItComes) {
  Start();
  RawClient client(port_);
  client.Request("POST", "/v1/completions", kStream);
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

TEST_F(DoorTest, ManyStreamsAtOnce) {
  Start();
  constexpr int kStreams = 24;
  constexpr int kEvents = 200;
  std::vector<std::thread> clients;
  std::atomic<int> complete = 0;
  for (int i = 0; i < kStreams; ++i) {
    clients.emplace_back([this, &complete] {
      const ClientResponse response = Ask("POST", "/v1/completions", kStream);
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

TEST_F(DoorTest, ARefusalKeepsItsStatusAlsoForAStream) {
  Start();
  engine().set_script([](const GenerateRequest&, ScriptedStream& stream) {
    stream.Push(ErrorEvent(WithRetryAfter(absl::ResourceExhaustedError("busy"), absl::Seconds(7))));
  });
  const ClientResponse response = Ask("POST", "/v1/completions", kStream);
  EXPECT_EQ(response.status, 429);
  EXPECT_EQ(response.headers.at("retry-after"), "7");
  EXPECT_EQ(Json::parse(response.body)["error"]["type"], "rate_limit_error");
}

TEST_F(DoorTest, AnErrorInsideAStreamIsItsLastEventAndCloses) {
  Start();
  RawClient client(port_);
  client.Request("POST", "/v1/completions", kStream);
  const auto stream = engine().WaitStream();
  stream->Push(TextEvent("x"));
  stream->Push(ErrorEvent(absl::InternalError("NaN")));
  const ClientResponse response = client.Read();
  EXPECT_THAT(response.body, HasSubstr("data: {\"error\":{\"message\":\"NaN\""));
  EXPECT_EQ(response.body.find("[DONE]"), response.body.npos);
  EXPECT_TRUE(client.AtEnd());
}

// ---- Clients that leave ----

TEST_F(DoorTest, AClientThatLeavesCancels) {
  Start();
  struct Case {
    std::string_view body;
    bool after_first;
    bool reset;
  };
  size_t n = 0;
  for (const Case& c :
       {Case{kWhole, false, false}, Case{kWhole, false, true}, Case{kWhole, true, false},
        Case{kStream, false, false}, Case{kStream, true, false}, Case{kStream, true, true}}) {
    RawClient client(port_);
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

TEST_F(DoorTest, AClientThatLeavesWithRequestsAheadIsSeenToo) {
  Start();
  RawClient client(port_);
  client.Request("POST", "/v1/completions", kStream);
  const auto stream = engine().WaitStream();
  client.Request("GET", "/livez");
  client.Close();
  EXPECT_EQ(stream->WaitCancelled(), CancelReason::kClientGone);
}

TEST_F(DoorTest, AClientThatDoesNotReadHoldsUpNobodyAndIsClosed) {
  Start({.write_timeout = absl::Milliseconds(300)}, "", /*threads=*/1);
  RawClient slow(port_, /*receive_buffer=*/4096);
  slow.Request("POST", "/v1/completions", kStream);
  const auto stream = engine().WaitStream();
  // More than the system's own buffers take (4 MiB).
  for (int i = 0; i < 200; ++i) stream->Push(TextEvent(std::string(100'000, 'x'), {1}));
  EXPECT_EQ(Ask("GET", "/livez").status, 200);
  EXPECT_EQ(stream->WaitCancelled(), CancelReason::kClientGone);
  EXPECT_GT(stream->unread(), 20u);  // the door took no more than it could pass on
}

// ---- HTTP ----

TEST_F(DoorTest, HeadOptionsAndTheQuery) {
  Start();
  const ClientResponse head = Ask("HEAD", "/version");
  EXPECT_EQ(head.status, 200);
  EXPECT_NE(head.headers.at("content-length"), "0");
  const ClientResponse options = Ask("OPTIONS", "/v1/completions");
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.headers.at("allow"), "POST, OPTIONS");
  EXPECT_EQ(Ask("GET", "/version?api-version=1").status, 200);
  EXPECT_EQ(Ask("GET", "http://localhost/version").status, 200);
  EXPECT_EQ(Ask("GET", "http://evil.com/version").status, 403);
}

TEST_F(DoorTest, RequestIdsAreRepeatedIfFit) {
  Start();
  EXPECT_EQ(Ask("GET", "/livez", "", "X-Request-Id: abc-1\r\n").headers.at("x-request-id"),
            "abc-1");
  for (const std::string& unfit :
       {std::string("a b"), std::string(200, 'x'), std::string("\xff")}) {
    const std::string id = Ask("GET", "/livez", "", StrCat("X-Request-Id: ", unfit, "\r\n"))
                               .headers.at("x-request-id");
    EXPECT_EQ(id.size(), 32u) << id;
  }
  EXPECT_NE(Ask("GET", "/livez").headers.at("x-request-id"),
            Ask("GET", "/livez").headers.at("x-request-id"));
}

TEST_F(DoorTest, PipelinedRequestsAreAnsweredInOrder) {
  Start();
  RawClient client(port_);
  std::string requests;
  for (int i = 0; i < 50; ++i) {
    requests += StrCat("GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: ", i, "\r\n\r\n");
  }
  client.Send(requests);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(client.Read().headers.at("x-request-id"), StrCat(i));
}

TEST_F(DoorTest, ChunkedBodiesAndBodiesInPieces) {
  Start();
  engine().set_script(Finish);
  RawClient client(port_);
  client.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\n5;ext=1\r\n{\"pro\r\nA\r\nmpt\": \"p\"}\r\n0\r\n\r\n");
  EXPECT_EQ(client.Read().status, 200);
  RawClient second(port_);
  const std::string request = StrCat(
      "\r\nPOST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: ",
      kWhole.size(), "\r\n\r\n", kWhole);
  for (char c : request) second.Send(std::string_view(&c, 1));
  EXPECT_EQ(second.Read().status, 200);
}

TEST_F(DoorTest, ALargeBodyIsParsedAndAnswered) {
  Start();
  engine().set_script(Finish);
  const std::string body = StrCat("{\"prompt\": \"", std::string(3 << 20, 'x'), "\"}");
  EXPECT_EQ(Ask("POST", "/v1/completions", body).status, 200);
  EXPECT_EQ(std::get<std::string>(engine().request().prompt).size(), size_t{3 << 20});
}

TEST_F(DoorTest, Expect100Continue) {
  Start();
  engine().set_script(Finish);
  RawClient client(port_);
  const std::string head = StrCat(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Expect: 100-continue\r\nContent-Length: ",
      kWhole.size(), "\r\n\r\n");
  client.Send(head);
  EXPECT_EQ(client.Read().status, 100);
  client.Send(kWhole);
  EXPECT_EQ(client.Read().status, 200);
  EXPECT_EQ(Raw("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: a miracle\r\n\r\n"),
            417);
  // Refused before the body is asked for.
  EXPECT_EQ(Raw("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
                "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n"),
            415);
}

TEST_F(DoorTest, Http10ClosesUnlessAskedNotTo) {
  Start();
  RawClient client(port_);
  client.Send("GET /livez HTTP/1.0\r\n\r\n");
  EXPECT_EQ(client.Read().headers.at("connection"), "close");
  EXPECT_TRUE(client.AtEnd());
  RawClient kept(port_);
  for (int i = 0; i < 2; ++i) {
    kept.Send("GET /livez HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    EXPECT_EQ(kept.Read().headers.at("connection"), "keep-alive");
  }
  engine().set_script(Finish);
  RawClient stream(port_);
  stream.Send(
      StrCat("POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\n"
             "Content-Length: ",
             kStream.size(), "\r\n\r\n", kStream));
  const ClientResponse response = stream.Read();
  EXPECT_FALSE(response.headers.contains("transfer-encoding"));
  EXPECT_THAT(response.body, StartsWith("data: {"));
  EXPECT_THAT(response.body, testing::EndsWith("data: [DONE]\n\n"));
}

TEST_F(DoorTest, ConnectionCloseIsHonoured) {
  Start();
  RawClient client(port_);
  client.Request("GET", "/livez", "", "Connection: close\r\n");
  EXPECT_EQ(client.Read().headers.at("connection"), "close");
  EXPECT_TRUE(client.AtEnd());
}

TEST_F(DoorTest, WhatIsNotHttpGetsAnErrorAndIsClosed) {
  Start();
  constexpr std::string_view kHost = "Host: localhost\r\n";
  for (const std::string& bytes : std::vector<std::string>{
           "hello\r\n\r\n",
           "GET\r\n\r\n",
           "GET /livez\r\n\r\n",
           "\x16\x03\x01\x02\x00\x01\r\n\r\n",
           "GET /livez HTTP/1.1\r\n\r\n",                                        // no Host
           "GET /livez HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",  // two
           StrCat("GET /livez HTTP/1.1\r\n", kHost, "no colon\r\n\r\n"),
           StrCat("GET /livez HTTP/1.1\r\n", kHost, "space : x\r\n\r\n"),
           StrCat("GET /li\tvez HTTP/1.1\r\n", kHost, "\r\n"),
           StrCat("GET /livez HTTP/1.1\r\n", kHost, std::string("x: \0\r\n\r\n", 8)),
       }) {
    EXPECT_EQ(Raw(bytes), 400) << Printable(bytes);
  }
  EXPECT_EQ(Raw(StrCat("GET /livez HTTP/2.0\r\n", kHost, "\r\n")), 505);
  EXPECT_EQ(Raw("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505);
}

TEST_F(DoorTest, RequestsThatTwoReadersWouldCutDifferentlyAreRefused) {
  Start();
  constexpr std::string_view kStart =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
  for (std::string_view rest : {
           "Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
           "Content-Length: 5, 6\r\n\r\nabcdef",
           "Content-Length: -1\r\n\r\n",
           "Content-Length: 0x5\r\n\r\nabcde",
           "Content-Length: 99999999999999999999999\r\n\r\n",
           "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
           "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
           "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
           "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
           "Transfer-Encoding: identity\r\n\r\n",
           "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
           "Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
           "Transfer-Encoding: chunked\r\n\r\n-5\r\n\r\n",
           "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n\r\n",
           "Transfer-Encoding: chunked\r\n\r\n5\r\nabcdefgh\r\n0\r\n\r\n",
       }) {
    EXPECT_EQ(Raw(StrCat(kStart, rest)), 400) << rest;
  }
  EXPECT_EQ(Raw("POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            400);
  EXPECT_EQ(engine().num_requests(), 0u);
}

TEST_F(DoorTest, HeadersAreBounded) {
  Start();
  EXPECT_EQ(Ask("GET", "/livez", "", StrCat("X: ", std::string(20'000, 'x'), "\r\n")).status, 431);
  std::string many;
  for (int i = 0; i < 120; ++i) many += StrCat("X", i, ": y\r\n");
  EXPECT_EQ(Ask("GET", "/livez", "", many).status, 431);
  EXPECT_EQ(Raw(StrCat("GET /", std::string(20'000, 'x'), " HTTP/1.1\r\n\r\n")), 431);
  EXPECT_EQ(Ask("GET", "/livez", "", StrCat("X: ", std::string(10'000, 'x'), "\r\n")).status, 200);
}

TEST_F(DoorTest, BodiesAreBounded) {
  Start({.body_bytes = 100'000, .all_bodies_bytes = 150'000});
  const std::string announced =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
  EXPECT_EQ(Raw(StrCat(announced, "Content-Length: 100001\r\n\r\n")), 413);
  EXPECT_EQ(Raw(StrCat(announced, "Content-Length: 1000000000000\r\n\r\n")), 413);
  std::string chunks;
  for (int i = 0; i < 20; ++i) chunks += StrCat("2000\r\n", std::string(0x2000, 'x'), "\r\n");
  EXPECT_EQ(Raw(StrCat(announced, "Transfer-Encoding: chunked\r\n\r\n", chunks)), 413);
  // Together, too: the second has no room once the first has announced its bytes.
  RawClient first(port_);
  first.Send(StrCat(announced, "Expect: 100-continue\r\nContent-Length: 90000\r\n\r\n"));
  EXPECT_EQ(first.Read().status, 100);
  const std::string second = StrCat(announced, "Content-Length: 90000\r\n\r\n");
  EXPECT_EQ(Raw(second), 503);
  first.Send(std::string(90'000, ' '));
  EXPECT_EQ(first.Read().status, 400);
  RawClient third(port_);
  third.Send(StrCat(second, std::string(90'000, ' ')));
  EXPECT_EQ(third.Read().status, 400);  // the room is free again
}

TEST_F(DoorTest, SlowRequestsTimeOut) {
  Start({.header_timeout = absl::Milliseconds(200),
         .body_timeout = absl::Milliseconds(200),
         .idle_timeout = absl::Milliseconds(200)});
  RawClient silent(port_);
  EXPECT_TRUE(silent.AtEnd());
  RawClient head(port_);
  head.Send("GET /livez HTTP/1.1\r\nHost: loc");
  EXPECT_EQ(head.Read().status, 408);
  RawClient body(port_);
  body.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: 10\r\n\r\n{");
  EXPECT_EQ(body.Read().status, 408);
  EXPECT_TRUE(body.AtEnd());
  RawClient idle(port_);
  idle.Request("GET", "/livez");
  EXPECT_EQ(idle.Read().status, 200);
  EXPECT_TRUE(idle.AtEnd());
}

TEST_F(DoorTest, AnAnswerMayTakeLongerThanAnyReadTimeout) {
  Start({.header_timeout = absl::Milliseconds(100),
         .body_timeout = absl::Milliseconds(100),
         .idle_timeout = absl::Milliseconds(100),
         .write_timeout = absl::Milliseconds(100)});
  RawClient client(port_);
  client.Request("POST", "/v1/completions", kStream);
  const auto stream = engine().WaitStream();
  stream->Push(TextEvent("x"));
  client.ReadHeader();
  client.ReadSome();
  absl::SleepFor(absl::Milliseconds(500));
  stream->Push(FinishEvent(FinishReason::kStop, "late"));
  EXPECT_THAT(client.ReadSome(), HasSubstr("late"));
}

TEST_F(DoorTest, ConnectionsAreBounded) {
  Start({.connections = 2});
  RawClient first(port_);
  RawClient second(port_);
  for (RawClient* client : {&first, &second}) {
    client->Request("GET", "/livez");
    EXPECT_EQ(client->Read().status, 200);
  }
  RawClient third(port_);
  EXPECT_THAT(third.ReadToEnd(), HasSubstr("503"));
  first.Close();
  int status = 0;  // once the server has seen that the first is gone
  for (int i = 0; i < 1000 && status != 200; ++i) {
    RawClient again(port_);
    if (again.Request("GET", "/livez")) status = again.Read().status;
  }
  EXPECT_EQ(status, 200);
}

TEST_F(DoorTest, KeysAndHosts) {
  Start({}, "secret");
  EXPECT_EQ(Ask("GET", "/livez").status, 200);
  const ClientResponse refused = Ask("POST", "/v1/completions", kWhole);
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.headers.at("www-authenticate"), "Bearer");
  EXPECT_EQ(Ask("GET", "/v1/models", "", "Authorization: Bearer secret\r\n").status, 200);
  EXPECT_EQ(Ask("GET", "/livez", "", "Origin: http://evil.com\r\n").status, 403);
  EXPECT_EQ(Raw("GET /livez HTTP/1.1\r\nHost: evil.com\r\n\r\n"), 403);
}

// ---- The end ----

TEST_F(DoorTest, WhileDrainingRunningAnswersFinishAndNewOnesAreRefused) {
  Start();
  RawClient running(port_);
  running.Request("POST", "/v1/completions", kStream);
  const auto stream = engine().WaitStream();
  stream->Push(TextEvent("x"));
  running.ReadHeader();
  frontend_->is_draining = true;
  RawClient late(port_);
  late.Request("POST", "/v1/completions", kWhole);
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

TEST_F(DoorTest, StopClosesIdleConnectionsAndWaitsForAnswers) {
  Start();
  RawClient idle(port_);
  idle.Request("GET", "/livez");
  idle.Read();
  RawClient running(port_);
  running.Request("POST", "/v1/completions", kWhole);
  const auto stream = engine().WaitStream();
  std::thread stop([this] { server_->Stop(absl::Seconds(20)); });
  EXPECT_TRUE(idle.AtEnd());
  stream->Push(FinishEvent(FinishReason::kStop, "whole"));
  const ClientResponse response = running.Read();
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.headers.at("connection"), "close");
  running.Close();
  stop.join();
  EXPECT_FALSE(stream->cancelled());
}

TEST_F(DoorTest, StopEndsWhatDoesNotEndByItself) {
  Start();
  RawClient running(port_);
  running.Request("POST", "/v1/completions", kStream);
  const auto stream = engine().WaitStream();
  server_->Stop(absl::ZeroDuration());
  EXPECT_EQ(stream->cancelled(), CancelReason::kClientGone);
  stream->Push(TextEvent("nobody hears this"));
  EXPECT_TRUE(running.AtEnd());
}

TEST_F(DoorTest, ATakenPortOrABadAddressIsAnError) {
  Start();
  HttpServer taken(*frontend_, {.port = port_});
  EXPECT_EQ(taken.Start().status().code(), absl::StatusCode::kUnavailable);
  HttpServer bad(*frontend_, {.host = "not an address"});
  EXPECT_EQ(bad.Start().status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace
