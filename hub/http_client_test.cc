#include "hub/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "base/strings.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;

// Answers one request with an endless body, a piece at a time, until the client disconnects.
class EndlessServer {
 public:
  EndlessServer(int status, size_t piece_bytes, milliseconds pause)
      : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(address);
    auto* const plain = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener_, plain, size), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    EXPECT_EQ(getsockname(listener_, plain, &size), 0);
    url_ = StrCat("http://127.0.0.1:", ntohs(address.sin_port), "/");
    thread_ = std::thread([=, this] { Answer(status, std::string(piece_bytes, ' '), pause); });
  }
  ~EndlessServer() {
    shutdown(listener_, SHUT_RDWR);  // in case no client has connected
    thread_.join();
    close(listener_);
  }

  const std::string& url() const { return url_; }

 private:
  void Answer(int status, const std::string& piece, milliseconds pause) const {
    const int client = accept(listener_, nullptr, nullptr);
    if (client < 0) return;
    char request[4096];
    recv(client, request, sizeof(request), 0);
    std::string next = StrCat("HTTP/1.1 ", status, " Told\r\n\r\n");
    while (send(client, next.data(), next.size(), MSG_NOSIGNAL) >= 0) {
      next = piece;
      std::this_thread::sleep_for(pause);
    }
    close(client);
  }

  const int listener_;
  std::string url_;
  std::thread thread_;
};

absl::StatusOr<HttpReply> Ask(const EndlessServer& server,
                              std::optional<milliseconds> time_limit = std::nullopt) {
  static constexpr std::atomic<bool> kNoStop = false;
  setenv("no_proxy", "*", 1);
  HttpClient client(&kNoStop);
  return client.Send({.url = server.url(), .time_limit = time_limit},
                     [](const HttpReply&, std::string_view) { return true; });
}

TEST(HttpClientTest, TheEndOfAnErrorsPageIsNotWaitedFor) {
  const EndlessServer large(503, 1 << 16, milliseconds(0));
  const absl::StatusOr<HttpReply> of_large = Ask(large);
  ASSERT_TRUE(of_large.ok()) << of_large.status();
  EXPECT_EQ(of_large->status, 503);
  const EndlessServer slow(503, 1, milliseconds(20));
  const absl::StatusOr<HttpReply> of_slow = Ask(slow);
  ASSERT_TRUE(of_slow.ok()) << of_slow.status();
  EXPECT_EQ(of_slow->status, 503);
}

TEST(HttpClientTest, AnAnswerHasItsTime) {
  const EndlessServer slow(200, 1, milliseconds(20));
  EXPECT_EQ(Ask(slow, milliseconds(100)).status().code(), absl::StatusCode::kUnavailable);
}

TEST(HttpClientTest, RedirectsDoNotLeaveHttps) {
  const std::string secure = "https://hub.example/org/name";
  EXPECT_EQ(*RedirectTarget(secure, "/other?x=1"), "https://hub.example/other?x=1");
  EXPECT_EQ(*RedirectTarget(secure, "//storage.example/a"), "https://storage.example/a");
  EXPECT_EQ(*RedirectTarget("http://hub.example/", "https://hub.example/"), "https://hub.example/");
  EXPECT_EQ(*RedirectTarget("http://hub.example/", "http://a.example/"), "http://a.example/");
  for (const char* location : {"http://hub.example/org/name", "HTTP://storage.example/"}) {
    const auto next = RedirectTarget(secure, location);
    EXPECT_EQ(next.status().code(), absl::StatusCode::kFailedPrecondition) << *next;
    EXPECT_NE(next.status().message().find("redirects from https to http://"), std::string::npos);
  }
  EXPECT_EQ(RedirectTarget(secure, "ftp://hub.example/").status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace millrace
