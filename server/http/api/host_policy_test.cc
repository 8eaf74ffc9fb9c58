#include "server/http/api/host_policy.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace millrace {
namespace {

HostPolicy Policy(std::string_view bind, const std::vector<std::string>& allowed = {},
                  bool key = false) {
  auto policy = HostPolicy::Make(bind, allowed, key);
  EXPECT_TRUE(policy.ok()) << policy.status();
  return *std::move(policy);
}

bool Host(const HostPolicy& policy, std::string_view host) {
  return policy.Check(host, std::nullopt).ok();
}

bool Origin(const HostPolicy& policy, std::string_view host, std::string origin) {
  return policy.Check(host, std::move(origin)).ok();
}

TEST(HostPolicyTest, OnLoopbackOnlyLoopbackNamesAndAllowedHosts) {
  const HostPolicy policy = Policy("127.0.0.1", {"ai.example.com", "box:8080"});
  for (std::string_view host :
       {"localhost", "LOCALHOST:8000", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:8000",
        "localhost.", "ai.example.com:443", "AI.example.com.", "box:8080", ""}) {
    EXPECT_TRUE(Host(policy, host)) << host;
  }
  for (std::string_view host :
       {"evil.com", "evil.com:8000", "localhost.evil.com", "127.0.0.1.evil.com", "192.168.1.1",
        "box", "box:8081", "sub.ai.example.com", "[::1", "[::1]x", "localhost:x",
        "localhost:123456", "a b", "localhost/", "user@localhost", ":8000", "[]"}) {
    EXPECT_FALSE(Host(policy, host)) << host;
  }
}

TEST(HostPolicyTest, EveryWayToSayLoopbackIsLoopback) {
  for (std::string_view bind : {"localhost", "127.0.0.2", "::1", "::ffff:127.0.0.1"}) {
    const HostPolicy policy = Policy(bind);
    EXPECT_TRUE(Host(policy, "[::1]:8000")) << bind;
    EXPECT_TRUE(Host(policy, "localhost:8000")) << bind;
    EXPECT_FALSE(Host(policy, "192.168.1.1:8000")) << bind;
    EXPECT_FALSE(Host(policy, "[fe80::1]:8000")) << bind;
  }
}

TEST(HostPolicyTest, ElsewhereWithoutAKeyAddressesPassToo) {
  const HostPolicy policy = Policy("0.0.0.0", {"ai.example.com"});
  for (std::string_view host :
       {"192.168.1.1:8000", "[fe80::1]:8000", "localhost", "ai.example.com"}) {
    EXPECT_TRUE(Host(policy, host)) << host;
  }
  for (std::string_view host : {"evil.com", "1.2.3.4.evil.com", "1.2.3", "1.2.3.4.5"}) {
    EXPECT_FALSE(Host(policy, host)) << host;
  }
}

TEST(HostPolicyTest, ElsewhereWithAKeyNamesAreFreeUnlessListed) {
  EXPECT_TRUE(Host(Policy("0.0.0.0", {}, true), "anything.example.com"));
  EXPECT_FALSE(Host(Policy("0.0.0.0", {}, true), "not a host"));
  const HostPolicy listed = Policy("0.0.0.0", {"ai.example.com"}, true);
  EXPECT_TRUE(Host(listed, "ai.example.com"));
  EXPECT_FALSE(Host(listed, "evil.com"));
  EXPECT_FALSE(Host(Policy("127.0.0.1", {}, true), "evil.com"));
}

TEST(HostPolicyTest, AnOriginMustBeOurs) {
  const HostPolicy policy = Policy("127.0.0.1", {"ai.example.com"});
  EXPECT_TRUE(Origin(policy, "localhost:8000", "http://localhost:8000"));
  EXPECT_TRUE(Origin(policy, "localhost:8000", "http://127.0.0.1:3000"));
  EXPECT_TRUE(Origin(policy, "localhost:8000", "https://ai.example.com"));
  for (std::string_view origin : {"http://evil.com", "null", "", "http://", "localhost",
                                  "http://localhost.evil.com", "http://evil.com:8000"}) {
    EXPECT_FALSE(Origin(policy, "localhost:8000", std::string(origin))) << origin;
  }
  const HostPolicy open = Policy("0.0.0.0", {}, true);
  EXPECT_TRUE(Origin(open, "svc:8000", "http://svc:8000"));
  EXPECT_FALSE(Origin(open, "svc:8000", "http://svc:9000"));
  EXPECT_FALSE(Origin(open, "svc:8000", "http://localhost:3000"));
}

TEST(HostPolicyTest, AStarAllowsEveryName) {
  const HostPolicy policy = Policy("127.0.0.1", {"*"});
  EXPECT_TRUE(Host(policy, "evil.com"));
  EXPECT_TRUE(Origin(policy, "localhost", "http://evil.com"));
  EXPECT_FALSE(Origin(policy, "localhost", "null"));
}

TEST(HostPolicyTest, AllowedHostsMustBeHosts) {
  for (std::string_view bad : {"", "http://x", "a/b", "a b", "x:port"}) {
    EXPECT_FALSE(HostPolicy::Make("127.0.0.1", {std::string(bad)}, false).ok()) << bad;
  }
}

}  // namespace
}  // namespace millrace
