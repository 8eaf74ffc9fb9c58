#include "server/guard/listen.h"

#include <gtest/gtest.h>

#include <string>

namespace millrace {
namespace {

namespace net = boost::asio;
using Tcp = net::ip::tcp;

class ListenTest : public testing::Test {
 protected:
  bool HasIpv6() { return ListenOn(context_, {.host = "::1", .port_setting = "http-port"}).ok(); }

  bool Reaches(const std::string& address, uint16_t port) {
    Tcp::socket socket(context_);
    boost::system::error_code error;
    socket.connect(Tcp::endpoint(net::ip::make_address(address), port), error);
    return !error;
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
    const auto acceptors = ListenOn(context_, {.host = c.host, .port_setting = "http-port"});
    ASSERT_TRUE(acceptors.ok()) << c.host << ": " << acceptors.status();
    const uint16_t port = acceptors->front().local_endpoint().port();
    EXPECT_EQ(Reaches("127.0.0.1", port), c.v4) << c.host;
    EXPECT_EQ(Reaches("::1", port), c.v6) << c.host;
  }
}

TEST_F(ListenTest, LocalhostIsRefusedWhereAnotherHasItsPortOnIpv6) {
  if (!HasIpv6()) GTEST_SKIP() << "no IPv6 here";
  const auto other = ListenOn(context_, {.host = "::1", .port_setting = "http-port"});
  ASSERT_TRUE(other.ok());
  const uint16_t port = other->front().local_endpoint().port();
  const auto refused =
      ListenOn(context_, {.host = "localhost", .port = port, .port_setting = "http-port"});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(refused.status().message(),
            "http-port: cannot listen on " + HostAndPort("::1", port) + ": Address already in use");
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

}  // namespace
}  // namespace millrace
