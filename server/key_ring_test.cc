#include "server/key_ring.h"

#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "base/sha256.h"
#include "base/strings.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

std::string Hex(std::string_view key) {
  return absl::BytesToHexString(AbslView(AsBytes(Sha256Of(key))));
}

class KeyRingTest : public ::testing::Test {
 protected:
  KeyRingTest()
      : path_(StrCat(::testing::TempDir(), "/",
                     ::testing::UnitTest::GetInstance()->current_test_info()->name(), ".json")) {}

  void Write(const std::string& entries) {
    const std::string next = path_ + ".next";
    std::ofstream(next) << R"({"keys": [)" << entries << "]}";
    std::filesystem::rename(next, path_);
  }
  static std::string Entry(const std::string& name, const std::string& key,
                           const std::string& more = "") {
    return StrCat(R"({"name": ")", name, R"(", "sha256": ")", Hex(key), "\"", more, "}");
  }
  std::string Error(const std::string& entries) {
    Write(entries);
    return std::string(KeyRing::Open(path_, false).status().message());
  }

  const std::string path_;
};

TEST_F(KeyRingTest, ACertificateStandsForAKey) {
  Write(StrCat(R"({"name": "a", "certificate": "CN=alice,O=Example", "scopes": ["metrics"]},)",
               R"({"name": "b", "certificate": ["DNS:bob.example", "URI:spiffe://x/bob"]},)",
               Entry("c", "one", R"(, "certificate": "CN=carol")")));
  const auto ring = KeyRing::Open(path_, false, /*certificates=*/true);
  ASSERT_TRUE(ring.ok()) << ring.status();
  const auto who = [&](std::vector<std::string> identities, Scope scope) {
    std::shared_ptr<const Tenant> tenant;
    const absl::Status status = (*ring)->AuthorizeCertificate(identities, scope, &tenant);
    return status.ok() ? tenant->limits().name : absl::StatusCodeToString(status.code());
  };
  EXPECT_EQ(who({"CN=alice,O=Example"}, Scope::kMetrics), "a");
  EXPECT_EQ(who({"CN=alice,O=Example"}, Scope::kInfer), "PERMISSION_DENIED");
  EXPECT_EQ(who({"CN=x", "DNS:y", "URI:spiffe://x/bob"}, Scope::kInfer), "b");
  EXPECT_EQ(who({"CN=carol", "DNS:bob.example"}, Scope::kInfer), "c");
  for (const char* unknown : {"CN=alice", "CN=alice,O=Example ", "cn=alice,O=Example", "a", "",
                              "DNS:BOB.example", "bob.example", "one"}) {
    EXPECT_EQ(who({unknown}, Scope::kAny), "UNAUTHENTICATED") << unknown;
  }
  std::shared_ptr<const Tenant> by_key;
  ASSERT_TRUE((*ring)->Authorize("one", Scope::kInfer, &by_key).ok());
  EXPECT_EQ(by_key->limits().name, "c");
  EXPECT_EQ((*ring)->tenants().size(), 3u);
}

TEST_F(KeyRingTest, NamesWhatIsWrongWithACertificate) {
  const auto error = [&](const std::string& entries) {
    Write(entries);
    return std::string(KeyRing::Open(path_, false, true).status().message());
  };
  EXPECT_THAT(Error(R"({"name": "a", "certificate": "CN=a"})"),
              HasSubstr("certificate: is set, but without --ssl-ca-certs no client shows one"));
  EXPECT_THAT(error(R"({"name": "a", "certificate": "alice"})"),
              HasSubstr("has \"alice\"; allowed: a subject as \"CN=client-7,O=Example\""));
  for (const char* bad : {R"("")", R"("DNS:")", R"("=a")", R"("CN=")", R"(["CN=a", "b"])", "[]",
                          "7", R"("CN=\u00e9")", R"("CN=\n")"}) {
    EXPECT_THAT(error(StrCat(R"({"name": "a", "certificate": )", bad, "}")),
                HasSubstr("certificate"))
        << bad;
  }
  EXPECT_THAT(
      error(R"({"name": "a", "certificate": "CN=a"}, {"name": "b", "certificate": "CN=a"})"),
      HasSubstr("has CN=a, which is listed twice"));
  EXPECT_THAT(error(R"({"name": "a"})"), HasSubstr("sha256"));
}

TEST_F(KeyRingTest, KnowsKeysAndScopes) {
  Write(StrCat(Entry("a", "one"), ",", Entry("b", "two", R"(, "scopes": ["metrics", "admin"])")));
  const auto ring = KeyRing::Open(path_, false);
  ASSERT_TRUE(ring.ok()) << ring.status();
  std::shared_ptr<const Tenant> tenant;
  EXPECT_TRUE((*ring)->Authorize("one", Scope::kInfer, &tenant).ok());
  EXPECT_EQ(tenant->limits().name, "a");
  EXPECT_TRUE((*ring)->Authorize("one", Scope::kAny, nullptr).ok());
  for (const Scope scope : {Scope::kMetrics, Scope::kAdmin}) {
    EXPECT_EQ((*ring)->Authorize("one", scope, nullptr).code(),
              absl::StatusCode::kPermissionDenied);
    EXPECT_TRUE((*ring)->Authorize("two", scope, nullptr).ok());
  }
  EXPECT_EQ((*ring)->Authorize("two", Scope::kInfer, nullptr).code(),
            absl::StatusCode::kPermissionDenied);
  for (const char* unknown : {"", "three", "ones", "One"}) {
    EXPECT_EQ((*ring)->Authorize(unknown, Scope::kAny, nullptr).code(),
              absl::StatusCode::kUnauthenticated);
  }
}

TEST_F(KeyRingTest, ReadsEveryLimit) {
  Write(StrCat(R"({"name": "a", "sha256": [")", Hex("one"), R"(", ")", Hex("two"),
               R"("], "share": 7, "requests_per_minute": 5, "tokens_per_minute": 6,
               "max_streams": 3, "priority": [-2, 9], "cache_salt": "s"})"));
  const auto ring = KeyRing::Open(path_, false);
  ASSERT_TRUE(ring.ok()) << ring.status();
  std::shared_ptr<const Tenant> one, two;
  ASSERT_TRUE((*ring)->Authorize("one", Scope::kInfer, &one).ok());
  ASSERT_TRUE((*ring)->Authorize("two", Scope::kInfer, &two).ok());
  EXPECT_EQ(one->id(), two->id());
  const TenantLimits& limits = one->limits();
  EXPECT_EQ(limits.share, 7);
  EXPECT_EQ(limits.requests_per_minute, 5);
  EXPECT_EQ(limits.tokens_per_minute, 6);
  EXPECT_EQ(limits.max_streams, 3);
  EXPECT_EQ(limits.least_priority, -2);
  EXPECT_EQ(limits.most_priority, 9);
  EXPECT_EQ(limits.cache_salt, "salt:s");
  EXPECT_EQ((*ring)->tenants().size(), 1u);
}

TEST_F(KeyRingTest, SaltsDifferUnlessTheCacheIsShared) {
  Write(StrCat(Entry("a", "one"), ",", Entry("b", "two")));
  for (const bool shared : {false, true}) {
    const auto ring = KeyRing::Open(path_, shared);
    std::shared_ptr<const Tenant> a, b;
    ASSERT_TRUE((*ring)->Authorize("one", Scope::kInfer, &a).ok());
    ASSERT_TRUE((*ring)->Authorize("two", Scope::kInfer, &b).ok());
    EXPECT_EQ(a->limits().cache_salt == b->limits().cache_salt, shared);
    EXPECT_EQ(a->limits().cache_salt.empty(), shared);
  }
}

TEST_F(KeyRingTest, NamesWhatIsWrong) {
  EXPECT_THAT(Error("1"), HasSubstr("keys[0] is not an object"));
  EXPECT_THAT(Error(R"({"name": "a"})"), HasSubstr("keys[0].sha256"));
  EXPECT_THAT(Error(R"({"sha256": "00"})"), HasSubstr("keys[0].name"));
  EXPECT_THAT(Error(R"({"name": "a", "sha256": "00"})"), HasSubstr("64 hexadecimal digits"));
  EXPECT_THAT(Error(R"({"name": "a", "sha256": []})"), HasSubstr("sha256"));
  EXPECT_THAT(Error(Entry("a", "k", R"(, "key": "k")")), HasSubstr("keys[0].key"));
  EXPECT_THAT(Error(Entry("a", "k", R"(, "share": 0)")), HasSubstr("keys[0].share"));
  EXPECT_THAT(Error(Entry("a", "k", R"(, "share": 10001)")), HasSubstr("keys[0].share"));
  EXPECT_THAT(Error(Entry("a", "k", R"(, "max_streams": "3")")), HasSubstr("max_streams"));
  EXPECT_THAT(Error(Entry("a", "k", R"(, "priority": [3, 2])")), HasSubstr("priority"));
  EXPECT_THAT(Error(Entry("a", "k", R"(, "scopes": ["all"])")), HasSubstr("infer, metrics, admin"));
  EXPECT_THAT(Error(Entry("", "k")), HasSubstr("name"));
  EXPECT_THAT(Error(StrCat(Entry("a", "k"), ",", Entry("a", "l"))), HasSubstr("keys[1].name"));
  EXPECT_THAT(Error(StrCat(Entry("a", "k"), ",", Entry("b", "k"))), HasSubstr("listed twice"));
  EXPECT_THAT(std::string(KeyRing::Open("/no/such/file", false).status().message()),
              HasSubstr("keys: cannot read"));
}

// Waits until `done` holds, which takes a second at most on an idle machine.
template <typename Done>
bool Eventually(const Done& done) {
  for (int i = 0; i < 2000; ++i) {
    if (done()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

// Waits until the key is known, or not.
bool Becomes(const KeyRing& ring, std::string_view key, bool known) {
  return Eventually([&] { return ring.Authorize(key, Scope::kAny, nullptr).ok() == known; });
}

// Waits until the last reading has failed, or has not.
bool Fails(KeyRing& ring, bool failing = true) {
  return Eventually([&] { return ring.reading().failing() == failing; });
}

TEST_F(KeyRingTest, FollowsTheFile) {
  Write(Entry("a", "one"));
  const auto ring = KeyRing::Open(path_, false);
  std::shared_ptr<const Tenant> before, after;
  ASSERT_TRUE((*ring)->Authorize("one", Scope::kInfer, &before).ok());
  ASSERT_TRUE(before->Enter(1, {}).ok());
  Write(StrCat(Entry("a", "two", R"(, "max_streams": 1)"), ",", Entry("b", "three")));
  ASSERT_TRUE(Becomes(**ring, "two", true));
  EXPECT_FALSE((*ring)->Authorize("one", Scope::kAny, nullptr).ok());
  ASSERT_TRUE((*ring)->Authorize("two", Scope::kInfer, &after).ok());
  EXPECT_EQ(after->id(), before->id());
  EXPECT_FALSE(after->Enter(1, {}).ok()) << "the running stream counts on";
  // A file that is wrong, or gone, changes nothing.
  std::ofstream(path_) << "{";
  ASSERT_TRUE(Fails(**ring));
  EXPECT_TRUE((*ring)->Authorize("two", Scope::kAny, nullptr).ok());
  Write(Entry("b", "three"));
  EXPECT_TRUE(Becomes(**ring, "two", false));
  ASSERT_TRUE(Fails(**ring, false));
  std::filesystem::remove(path_);
  ASSERT_TRUE(Fails(**ring));
  EXPECT_TRUE((*ring)->Authorize("three", Scope::kAny, nullptr).ok());
}

TEST_F(KeyRingTest, AFileThatCouldNotBeReadIsReadAgainThoughItHasNotChanged) {
  if (std::getenv("MILLRACE_SANITIZED") != nullptr) {
    GTEST_SKIP() << "a sanitizer needs file descriptors of its own";
  }
  ManualClock clock;
  Write(Entry("a", "one"));
  const auto ring = KeyRing::Open(path_, false, false, clock);
  ASSERT_TRUE(ring.ok()) << ring.status();
  const std::string next = path_ + ".other";
  std::ofstream(next) << R"({"keys": [)" << Entry("b", "two") << "]}";
  rlimit files;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  const rlimit none = {.rlim_cur = 0, .rlim_max = files.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  std::filesystem::rename(next, path_);
  ASSERT_TRUE(Fails(**ring));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  clock.Advance(std::chrono::seconds(30));
  EXPECT_TRUE(Becomes(**ring, "two", true));
}

}  // namespace
}  // namespace millrace
