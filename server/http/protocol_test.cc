// HTTP itself: what is read, what is refused, and the limits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/strings.h"
#include "server/http/endpoint_test_util.h"
#include "server/http/transport/io_thread.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class ProtocolTest : public testing::Test, protected TestEndpoint {
 protected:
  // Waits until a connection that says nothing has timed out. On a server with one thread every
  // timer that was set before, and that is no longer than header_timeout, has then expired.
  void WaitForHeaderTimeout() const {
    RawClient silent(port());
    EXPECT_TRUE(silent.AtEnd());
  }
};

TEST_F(ProtocolTest, HeadOptionsAndTheQuery) {
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

TEST_F(ProtocolTest, RequestIdsAreRepeatedIfFit) {
  Start();
  engine().set_script(SayHello);
  Ask("POST", "/v1/completions", kWholeBody, "X-Request-Id: mine\r\n");
  EXPECT_EQ(engine().request().id, "cmpl-mine");  // so every log line has it
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

TEST_F(ProtocolTest, PipelinedRequestsAreAnsweredInOrder) {
  Start();
  RawClient client(port());
  std::string requests;
  for (int i = 0; i < 50; ++i) {
    requests += StrCat("GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: ", i, "\r\n\r\n");
  }
  client.Send(requests);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(client.Read().headers.at("x-request-id"), StrCat(i));
}

TEST_F(ProtocolTest, ChunkedBodiesAndBodiesInPieces) {
  Start();
  engine().set_script(SayHello);
  RawClient client(port());
  client.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\n5;ext=1\r\n{\"pro\r\nA\r\nmpt\": \"p\"}\r\n0\r\n\r\n");
  EXPECT_EQ(client.Read().status, 200);
  RawClient second(port());
  const std::string request = StrCat(
      "\r\nPOST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: ",
      kWholeBody.size(), "\r\n\r\n", kWholeBody);
  for (char c : request) second.Send(std::string_view(&c, 1));
  EXPECT_EQ(second.Read().status, 200);
}

TEST_F(ProtocolTest, ALargeBodyIsParsedAndAnswered) {
  Start();
  engine().set_script(SayHello);
  const std::string body = StrCat("{\"prompt\": \"", std::string(3 << 20, 'x'), "\"}");
  EXPECT_EQ(Ask("POST", "/v1/completions", body).status, 200);
  EXPECT_EQ(std::get<std::string>(engine().request().prompt).size(), size_t{3 << 20});
}

TEST_F(ProtocolTest, Expect100Continue) {
  Start();
  engine().set_script(SayHello);
  RawClient client(port());
  const std::string head = StrCat(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Expect: 100-continue\r\nContent-Length: ",
      kWholeBody.size(), "\r\n\r\n");
  client.Send(head);
  EXPECT_EQ(client.Read().status, 100);
  client.Send(kWholeBody);
  EXPECT_EQ(client.Read().status, 200);
  EXPECT_EQ(Raw("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: a miracle\r\n\r\n"),
            417);
  // Refused before the body is asked for.
  EXPECT_EQ(Raw("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
                "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n"),
            415);
}

TEST_F(ProtocolTest, Http10ClosesUnlessAskedNotTo) {
  Start();
  engine().set_script(SayHello);
  RawClient old(port());
  old.Send(StrCat(
      "POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Expect: 100-continue\r\nContent-Length: ",
      kWholeBody.size(), "\r\n\r\n"));
  old.Send(kWholeBody);
  EXPECT_EQ(old.Read().status, 200);
  RawClient client(port());
  client.Send("GET /livez HTTP/1.0\r\n\r\n");
  EXPECT_EQ(client.Read().headers.at("connection"), "close");
  EXPECT_TRUE(client.AtEnd());
  RawClient kept(port());
  for (int i = 0; i < 2; ++i) {
    kept.Send("GET /livez HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    EXPECT_EQ(kept.Read().headers.at("connection"), "keep-alive");
  }
  engine().set_script(SayHello);
  RawClient stream(port());
  stream.Send(
      StrCat("POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\n"
             "Content-Length: ",
             kStreamBody.size(), "\r\n\r\n", kStreamBody));
  const ClientResponse response = stream.Read();
  EXPECT_FALSE(response.headers.contains("transfer-encoding"));
  EXPECT_THAT(response.body, StartsWith("data: {"));
  EXPECT_THAT(response.body, testing::EndsWith("data: [DONE]\n\n"));
}

TEST_F(ProtocolTest, ConnectionCloseIsHonoured) {
  Start();
  RawClient client(port());
  client.Request("GET", "/livez", "", "Connection: close\r\n");
  EXPECT_EQ(client.Read().headers.at("connection"), "close");
  EXPECT_TRUE(client.AtEnd());
}

TEST_F(ProtocolTest, WhatIsNotHttpGetsAnErrorAndIsClosed) {
  Start();
  constexpr std::string_view kHost = "Host: localhost\r\n";
  for (const std::string& bytes : std::vector<std::string>{
           "hello\r\n\r\n",
           "GET\r\n\r\n",
           "GET /livez\r\n\r\n",
           "\x16\x03\x01\x02\xff\x01\r\n\r\n",  // the beginning of TLS, more or less
           "GET /livez HTTP/1.1\r\n\r\n",       // no Host
           "GET /livez HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",  // two
           StrCat("GET /livez HTTP/1.1\r\n", kHost, "no colon\r\n\r\n"),
           StrCat("GET /livez HTTP/1.1\r\n", kHost, "space : x\r\n\r\n"),
           StrCat("GET /li\tvez HTTP/1.1\r\n", kHost, "\r\n"),
           StrCat("GET /livez HTTP/1.1\r\n", kHost, "x: ", std::string(1, '\0'), "\r\n\r\n"),
       }) {
    EXPECT_EQ(Raw(bytes), 400) << Printable(bytes);
  }
  EXPECT_EQ(Raw(StrCat("GET /livez HTTP/2.0\r\n", kHost, "\r\n")), 505);
  EXPECT_EQ(Raw("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505);
}

TEST_F(ProtocolTest, RequestsThatTwoReadersWouldCutDifferentlyAreRefused) {
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

TEST_F(ProtocolTest, HeadersAreBounded) {
  Start();
  EXPECT_EQ(Ask("GET", "/livez", "", StrCat("X: ", std::string(20'000, 'x'), "\r\n")).status, 431);
  std::string many;
  for (int i = 0; i < 120; ++i) many += StrCat("X", i, ": y\r\n");
  EXPECT_EQ(Ask("GET", "/livez", "", many).status, 431);
  EXPECT_EQ(Raw(StrCat("GET /", std::string(20'000, 'x'), " HTTP/1.1\r\n\r\n")), 431);
  EXPECT_EQ(Ask("GET", "/livez", "", StrCat("X: ", std::string(10'000, 'x'), "\r\n")).status, 200);
}

TEST_F(ProtocolTest, BodiesAreBounded) {
  Start({.body_bytes = 100'000, .all_bodies_bytes = 150'000});
  const std::string announced =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
  EXPECT_EQ(Raw(StrCat(announced, "Content-Length: 100001\r\n\r\n")), 413);
  EXPECT_EQ(Raw(StrCat(announced, "Content-Length: 1000000000000\r\n\r\n")), 413);
  std::string chunks;
  for (int i = 0; i < 20; ++i) chunks += StrCat("2000\r\n", std::string(0x2000, 'x'), "\r\n");
  EXPECT_EQ(Raw(StrCat(announced, "Transfer-Encoding: chunked\r\n\r\n", chunks)), 413);
}

// A probe needs no key, so its body takes no memory that others wait for.
TEST_F(ProtocolTest, AnEndpointThatReadsNoBodyTakesALittleOne) {
  Start();
  const std::string probe = "GET /livez HTTP/1.1\r\nHost: localhost\r\n";
  EXPECT_EQ(Raw(StrCat(probe, "Content-Length: 65536\r\n\r\n", std::string(65536, ' '))), 200);
  EXPECT_EQ(Raw(StrCat(probe, "Content-Length: 65537\r\n\r\n")), 413);
  const std::string chunk = StrCat("8000\r\n", std::string(0x8000, ' '), "\r\n");
  EXPECT_EQ(Raw(StrCat(probe, "Transfer-Encoding: chunked\r\n\r\n", chunk, chunk, chunk)), 413);
}

constexpr std::string_view kPost =
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";

TEST_F(ProtocolTest, WhatIsOnlyAnnouncedIsNotCharged) {
  Start({.body_bytes = 100'000, .all_bodies_bytes = 150'000});
  std::vector<std::unique_ptr<RawClient>> announcing;
  for (int i = 0; i < 8; ++i) {
    announcing.push_back(std::make_unique<RawClient>(port()));
    announcing.back()->Send(StrCat(kPost, "Content-Length: 90000\r\n\r\n{"));
  }
  EXPECT_EQ(Raw(StrCat(kPost, "Content-Length: 90000\r\n\r\n", std::string(90'000, ' '))), 400);
}

TEST_F(ProtocolTest, ABodyThatComesSlowlyGivesWay) {
  Start({.body_bytes = 100'000, .all_bodies_bytes = 150'000, .header_timeout = absl::Seconds(1)},
        "", /*threads=*/1);
  RawClient slow(port());
  slow.Send(StrCat(kPost, "Content-Length: 90000\r\n\r\n", std::string(80'000, ' ')));
  EXPECT_TRUE(slow.WaitUntilServerRead(0));
  WaitForHeaderTimeout();
  RawClient brisk(port());
  brisk.Send(StrCat(kPost, "Content-Length: 90000\r\n\r\n", std::string(80'000, ' ')));
  const ClientResponse refused = slow.Read();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  brisk.Send(std::string(10'000, ' '));
  EXPECT_EQ(brisk.Read().status, 400);  // it came whole
}

TEST_F(ProtocolTest, ABodyBelowTheLeastRateTimesOut) {
  Start({.body_grace = absl::Milliseconds(300)});
  RawClient client(port());
  client.Send(StrCat(kPost, "Content-Length: 90000\r\n\r\n{"));
  const ClientResponse refused = client.Read();
  EXPECT_EQ(refused.status, 408);
  EXPECT_THAT(refused.body, HasSubstr("allowed: at least 1024 bytes a second"));
}

TEST_F(ProtocolTest, FieldsThatMayComeOnceAreRefusedTwice) {
  Start();
  for (const std::string_view field : {"Origin: http://localhost", "Content-Type: application/json",
                                       "Authorization: Bearer x", "Content-Encoding: identity"}) {
    EXPECT_EQ(
        Raw(StrCat("GET /livez HTTP/1.1\r\nHost: localhost\r\n", field, "\r\n", field, "\r\n\r\n")),
        400)
        << field;
  }
  EXPECT_EQ(Raw("GET /livez HTTP/1.1\r\nHost:\r\n\r\n"), 400);
  EXPECT_EQ(Raw("GET ftp://localhost/livez HTTP/1.1\r\nHost: localhost\r\n\r\n"), 400);
  EXPECT_EQ(Ask("GET", "/livez", "", "Origin: ftp://localhost\r\n").status, 403);
  EXPECT_EQ(Ask("GET", "/livez", "", "Origin: https://localhost\r\n").status, 200);
}

TEST_F(ProtocolTest, SlowHeadersTimeOut) {
  Start({.header_timeout = absl::Seconds(1)});
  RawClient silent(port());
  EXPECT_TRUE(silent.AtEnd());
  RawClient head(port());
  head.Send("GET /livez HTTP/1.1\r\nHost: loc");
  EXPECT_EQ(head.Read().status, 408);
}

TEST_F(ProtocolTest, SlowBodiesTimeOut) {
  Start({.body_timeout = absl::Milliseconds(200)});
  RawClient body(port());
  body.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: 10\r\n\r\n{");
  EXPECT_EQ(body.Read().status, 408);
  EXPECT_TRUE(body.AtEnd());
}

TEST_F(ProtocolTest, IdleConnectionsTimeOut) {
  Start({.idle_timeout = absl::Milliseconds(200)});
  RawClient idle(port());
  idle.Request("GET", "/livez");
  EXPECT_EQ(idle.Read().status, 200);
  EXPECT_TRUE(idle.AtEnd());
}

TEST_F(ProtocolTest, ConnectionsTimeOutAlsoAfterAnAnswerThatTookTime) {
  Start({.header_timeout = absl::Milliseconds(200), .idle_timeout = absl::Milliseconds(200)});
  RawClient idle(port());
  idle.Request("POST", "/v1/completions", kWholeBody);
  engine().WaitStream(0)->Push(FinishEvent());
  EXPECT_EQ(idle.Read().status, 200);
  EXPECT_TRUE(idle.AtEnd());
  idle.Request("GET", "/livez");
  EXPECT_EQ(idle.Read().status, 0);  // closed, and not merely silent
  RawClient begun(port());
  begun.Request("POST", "/v1/completions", kWholeBody);
  const auto stream = engine().WaitStream(1);
  begun.Send("GET /livez HTTP/1.1\r\n");  // ahead
  stream->Push(FinishEvent());
  EXPECT_EQ(begun.Read().status, 200);
  EXPECT_EQ(begun.Read().status, 408);
}

TEST_F(ProtocolTest, AnAnswerMayTakeLongerThanAnyReadTimeout) {
  Start({.header_timeout = absl::Seconds(1),
         .body_timeout = absl::Seconds(1),
         .idle_timeout = absl::Seconds(1),
         .write_timeout = absl::Seconds(1)},
        "", /*threads=*/1);
  RawClient client(port());
  client.Request("POST", "/v1/completions", kStreamBody);
  const auto stream = engine().WaitStream();
  stream->Push(TextEvent("x"));
  client.ReadHeader();
  client.ReadSome();
  WaitForHeaderTimeout();
  stream->Push(FinishEvent(FinishReason::kStop, "late"));
  EXPECT_THAT(client.ReadSome(), HasSubstr("late"));
}

TEST_F(ProtocolTest, WhatARefusedClientGoesOnToSendIsReadAway) {
  Start({.body_bytes = 1000,
         .header_timeout = absl::Seconds(1),
         .linger_timeout = absl::Milliseconds(300)},
        "", /*threads=*/1);
  RawClient client(port());
  client.Request("POST", "/v1/completions", std::string(2'000'000, ' '));
  EXPECT_EQ(client.Read().status, 413);
  EXPECT_TRUE(client.AtEnd());
  WaitForHeaderTimeout();  // its own deadline comes, too
  EXPECT_EQ(Ask("GET", "/livez").status, 200);
}

TEST_F(ProtocolTest, RequestsThatWaitBehindAnAnswerDoNotDisturbIt) {
  Start();
  RawClient client(port());
  client.Request("POST", "/v1/completions", kStreamBody);
  const auto stream = engine().WaitStream();
  stream->Push(TextEvent("x"));
  client.ReadHeader();
  client.ReadSome();
  // More than the server reads ahead, by less than the system's buffers take.
  std::string requests;
  while (requests.size() < IoThread::kInputBytes + 20'000) {
    requests += "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n";
  }
  EXPECT_TRUE(client.Send(requests));
  EXPECT_TRUE(client.WaitUntilServerRead(requests.size() - IoThread::kInputBytes));
  stream->Push(FinishEvent(FinishReason::kStop, "late"));
  std::string rest;
  while (rest.find("data: [DONE]") == std::string::npos) {
    const std::string more = client.ReadSome();
    if (more.empty()) break;
    rest += more;
  }
  EXPECT_THAT(rest, HasSubstr("late"));
  client.ShutdownSend();
}

TEST_F(ProtocolTest, IdleConnectionsGiveWay) {
  Start({.connections = 2});
  RawClient first(port());
  first.Request("GET", "/livez");
  EXPECT_EQ(first.Read().status, 200);
  RawClient second(port());
  second.Request("POST", "/v1/completions", kStreamBody);
  const auto stream = engine().WaitStream();
  stream->Push(TextEvent("x"));
  second.ReadHeader();
  second.ReadSome();
  RawClient third(port());
  third.Request("POST", "/v1/completions", "{}");
  EXPECT_EQ(third.Read().status, 400);
  EXPECT_TRUE(first.AtEnd());
  stream->Push(FinishEvent(FinishReason::kStop, "late"));
  EXPECT_THAT(second.ReadSome(), HasSubstr("late"));
}

TEST_F(ProtocolTest, WhereAllConnectionsAreBusyProbesAreAnswered) {
  Start({.connections = 2});
  std::vector<std::unique_ptr<RawClient>> busy;
  for (size_t i = 0; i < 2; ++i) {
    busy.push_back(std::make_unique<RawClient>(port()));
    busy.back()->Request("POST", "/v1/completions", kStreamBody);
    engine().WaitStream(i)->Push(TextEvent("x"));
    busy.back()->ReadHeader();
  }
  for (int i = 0; i < 300; ++i) {  // more than are spare, each of which stays open
    busy.push_back(std::make_unique<RawClient>(port()));
    busy.back()->Request("GET", "/livez");
    EXPECT_EQ(busy.back()->Read().status, 200) << i;
  }
  const ClientResponse refused = Ask("POST", "/v1/completions", kWholeBody);
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(refused.body, HasSubstr("too many connections"));
  busy.front()->Close();
  EXPECT_EQ(engine().WaitStream(0)->WaitCancelled(), CancelReason::kClientGone);
  int status = 0;  // once the connection is gone
  for (int i = 0; i < 1000 && status != 400; ++i) {
    status = Ask("POST", "/v1/completions", "{}").status;
  }
  EXPECT_EQ(status, 400);
}

TEST_F(ProtocolTest, WhatIsNeverReadEndsInTheKernelsBufferToo) {
  Start({.write_timeout = absl::Milliseconds(300)});
  RawClient client(port(), /*receive_buffer=*/4096);
  client.Request("POST", "/v1/completions", kStreamBody);
  const auto stream = engine().WaitStream();
  // Far less than the kernel would take; the client's own buffer takes less.
  stream->Push(TextEvent(std::string(100'000, 'x')));
  EXPECT_EQ(stream->WaitCancelled(), CancelReason::kClientGone);
}

TEST_F(ProtocolTest, ARefusedConnectionIsNotReadOnAndOn) {
  Start({.linger_timeout = absl::Seconds(60), .read_away_bytes = 32 << 20});
  // Returns how many bytes go out before the connection is closed.
  const auto sent = [&](std::string_view beginning) {
    RawClient client(port());
    client.Send(beginning);
    size_t pieces = 0;
    while (pieces < 4000 && client.Send(std::string(64 << 10, 'x'))) ++pieces;
    return pieces << 16;
  };
  const size_t after_request =
      sent("POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n");
  EXPECT_GE(after_request, size_t{32} << 20);
  EXPECT_LT(after_request, size_t{4000} << 16);
  EXPECT_LT(sent("nonsense\r\n\r\n"), size_t{24} << 20);  // the systems' buffers included
}

TEST_F(ProtocolTest, AClientThatSpeaksHttpMaySendMuchAfterARefusal) {
  Start({.linger_timeout = absl::Seconds(60)});
  const auto refused = [&](const std::string& beginning) {
    RawClient client(port());
    EXPECT_TRUE(client.Send(beginning)) << beginning.substr(0, 80);
    for (int i = 0; i < 64; ++i) {  // 8 MiB, more than the systems' buffers take
      EXPECT_TRUE(client.Send(std::string(128 << 10, 'x'))) << beginning.substr(0, 80);
    }
    return client.Read().status;
  };
  const std::string post = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n";
  const std::string large(HttpLimits().header_bytes, 'x');
  EXPECT_EQ(refused(post + "X-Large: " + large + "\r\nContent-Length: 8388608\r\n\r\n"), 431);
  EXPECT_EQ(refused("POST / HTTP/3.0\r\nContent-Length: 8388608\r\n\r\n"), 505);
  EXPECT_EQ(refused(post + "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
                           "no size\r\n"),
            400);
}

TEST_F(ProtocolTest, KeysAndHosts) {
  Start({}, "secret");
  EXPECT_EQ(Ask("GET", "/livez").status, 200);
  const ClientResponse refused = Ask("POST", "/v1/completions", kWholeBody);
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.headers.at("www-authenticate"), "Bearer");
  EXPECT_EQ(Ask("GET", "/v1/models", "", "Authorization: Bearer secret\r\n").status, 200);
  EXPECT_EQ(Ask("GET", "/livez", "", "Origin: http://evil.com\r\n").status, 403);
  EXPECT_EQ(Raw("GET /version HTTP/1.1\r\nHost: evil.com\r\n\r\n"), 403);
  EXPECT_EQ(Raw("GET /livez HTTP/1.1\r\nHost: evil.com\r\n\r\n"), 200);
}

}  // namespace
}  // namespace millrace
