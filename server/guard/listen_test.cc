#include "server/guard/listen.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {
namespace {

namespace net = boost::asio;
using Tcp = net::ip::tcp;

class ListenTest : public testing::Test {
 protected:
  bool HasIpv6() { return ListenOn(context_, {.host = "::1", .port_setting = "http-port"}).ok(); }

  // True where a client of `address` comes to `acceptors`, which share a port. The port may be
  // another program's on a family that they do not listen on.
  bool Reaches(std::vector<Tcp::acceptor>& acceptors, const std::string& address) {
    Tcp::socket socket(context_);
    boost::system::error_code error;
    const uint16_t port = acceptors.front().local_endpoint().port();
    socket.connect(Tcp::endpoint(net::ip::make_address(address), port), error);
    if (error) return false;
    std::vector<pollfd> polled;
    for (Tcp::acceptor& acceptor : acceptors) polled.push_back({acceptor.native_handle(), POLLIN});
    if (poll(polled.data(), polled.size(), /*timeout=*/1000) == 0) return false;
    acceptors[polled.front().revents & POLLIN ? 0 : 1].accept();
    return true;
  }

  net::io_context context_;
};

TEST_F(ListenTest, TakesTheAddressesThatTheHostStandsFor) {
  if (!HasIpv6()) GTEST_SKIP() << "no IPv6 here";
  struct Case {
    const char* host;
    bool v4, v6;
  };
  for (const Case& c : {Case{"localhost", true, true}, Case{"127.0.0.1", true, false},
                        Case{"::1", false, true}, Case{"::", true, true},
                        Case{"0.0.0.0", true, false}, Case{"::ffff:127.0.0.1", true, false}}) {
    auto acceptors = ListenOn(context_, {.host = c.host, .port_setting = "http-port"});
    ASSERT_TRUE(acceptors.ok()) << c.host << ": " << acceptors.status();
    EXPECT_EQ(Reaches(*acceptors, "127.0.0.1"), c.v4) << c.host;
    EXPECT_EQ(Reaches(*acceptors, "::1"), c.v6) << c.host;
  }
}

TEST_F(ListenTest, LocalhostIsRefusedWhereAnotherHasItsPortOnIpv6) {
  if (!HasIpv6()) GTEST_SKIP() << "no IPv6 here";
  // Where another program has the port on IPv4, IPv4 is what is refused, and another port tells.
  constexpr int kTries = 16;
  absl::Status refused;
  std::string taken;
  for (int tries = 0; tries < kTries; ++tries) {
    const auto other = ListenOn(context_, {.host = "::1", .port_setting = "http-port"});
    ASSERT_TRUE(other.ok());
    const uint16_t port = other->front().local_endpoint().port();
    taken = HostAndPort("::1", port);
    refused = ListenOn(context_, {.host = "localhost", .port = port, .port_setting = "http-port"})
                  .status();
    if (refused.message().find("127.0.0.1") == std::string_view::npos) break;
  }
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(std::string(refused.message()),
            "http-port: cannot listen on " + taken + ": Address already in use");
}

TEST_F(ListenTest, NamesTheSettingThatIsWrong) {
  const auto far = ListenOn(context_, {.host = "192.0.2.1",
                                       .port = 80,
                                       .host_setting = "metrics-host",
                                       .port_setting = "metrics-port"});
  EXPECT_EQ(far.status().message(),
            "metrics-host: cannot listen on 192.0.2.1:80: Cannot assign requested address");
  const auto none = ListenOn(context_, {.host = "pod", .port_setting = "http-port"});
  EXPECT_EQ(none.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(none.status().message(),
            "host is \"pod\"; allowed: an IPv4 or IPv6 address, or localhost");
}

TEST(HostAndPortTest, BracketsIpv6) {
  EXPECT_EQ(HostAndPort("127.0.0.1", 80), "127.0.0.1:80");
  EXPECT_EQ(HostAndPort("::1", 80), "[::1]:80");
}

TEST_F(ListenTest, AClientOfAListenerThatEndsIsServedOrRefusedAndNeverReset) {
  auto acceptors = ListenOn(context_, {.host = "127.0.0.1", .port_setting = "http-port"});
  ASSERT_TRUE(acceptors.ok());
  Tcp::acceptor& acceptor = acceptors->front();
  const Tcp::endpoint endpoint = acceptor.local_endpoint();

  // It waits in the queue, with its request.
  Tcp::socket early(context_);
  early.connect(endpoint);
  DropNewHandshakes(acceptor);
  const std::string request = "a request";
  net::write(early, net::buffer(request));
  boost::system::error_code late_error;
  Tcp::socket late(context_);
  late.async_connect(endpoint, [&](const boost::system::error_code& error) { late_error = error; });

  Tcp::socket accepted = acceptor.accept();
  acceptor.close();
  std::string got(request.size(), ' ');
  net::read(accepted, net::buffer(got));
  EXPECT_EQ(got, request);
  net::write(accepted, net::buffer("ok", 2));
  EXPECT_EQ(net::read(early, net::buffer(got, 2)), 2);

  context_.run();  // its second SYN finds no listener
  EXPECT_EQ(late_error, net::error::connection_refused);
}

}  // namespace
}  // namespace millrace
