#include "server/tls/tls_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/registry.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "server/tls/certificates_test_util.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class TlsServerTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return testing::TempDir() + "tls_" + name; }
  std::string Write(const std::string& name, const std::string& text) const {
    WriteTestFile(Path(name), text);
    return Path(name);
  }
  TlsFiles Files(const TestCertificate& one) const {
    return {.certificate = Write("cert.pem", one.certificate_pem()),
            .key = Write("key.pem", one.key_pem())};
  }
  static std::string Error(const TlsFiles& files) {
    const auto context = TlsContext::Load(files);
    return context.ok() ? "(no error)" : std::string(context.status().message());
  }

  TestCertificate one_ = MakeTestCertificate({.name = "one"});
  TestCertificate two_ = MakeTestCertificate({.name = "two"});
};

TEST_F(TlsServerTest, ReadsACertificateWithItsKeyAndChain) {
  const auto context = TlsContext::Load(Files(one_));
  ASSERT_TRUE(context.ok()) << context.status();
  EXPECT_EQ((*context)->subject(), "CN=one");
  EXPECT_GT((*context)->not_after(), absl::Now() + absl::Hours(22));
  const TestCertificate leaf = MakeTestCertificate({.name = "leaf", .issuer = &one_});
  EXPECT_EQ(Error({.certificate = Write("all.pem", leaf.certificate_pem() + one_.certificate_pem() +
                                                       leaf.key_pem())}),
            "(no error)");
}

TEST_F(TlsServerTest, NamesTheSettingOfWhatIsWrong) {
  const TlsFiles good = Files(one_);
  EXPECT_EQ(Error({.certificate = Path("none"), .key = good.key}),
            "ssl-certfile: " + Path("none") + " cannot be read: No such file or directory");
  EXPECT_EQ(Error({.certificate = good.certificate, .key = Path("none")}),
            "ssl-keyfile: " + Path("none") + " cannot be read: No such file or directory");
  EXPECT_THAT(Error({.certificate = testing::TempDir(), .key = good.key}),
              StartsWith("ssl-certfile: "));
  EXPECT_THAT(Error({.certificate = good.key, .key = good.key}),
              AllOf(StartsWith("ssl-certfile: "), HasSubstr("holds no certificate")));
  EXPECT_THAT(Error({.certificate = good.certificate}),
              AllOf(StartsWith("ssl-certfile: "), HasSubstr("no --ssl-keyfile is given")));
  EXPECT_THAT(Error({.certificate = good.certificate, .key = good.certificate}),
              AllOf(StartsWith("ssl-keyfile: "), HasSubstr("holds no private key")));
  EXPECT_THAT(Error({.certificate = good.certificate, .key = Write("other", two_.key_pem())}),
              AllOf(StartsWith("ssl-keyfile: "), HasSubstr("is not the key of the certificate")));
  const std::string broken = one_.certificate_pem();
  EXPECT_THAT(Error({.certificate = Write("broken", broken + broken.substr(0, broken.size() / 2)),
                     .key = good.key}),
              AllOf(StartsWith("ssl-certfile: "), HasSubstr("is broken")));
  EXPECT_THAT(Error({.certificate = good.certificate,
                     .key = Write("locked", "-----BEGIN ENCRYPTED PRIVATE KEY-----\n")}),
              AllOf(StartsWith("ssl-keyfile: "), HasSubstr("passphrase")));
  for (const std::string& path : {Path("none"), good.key}) {
    EXPECT_THAT(Error({.certificate = good.certificate,
                       .key = good.key,
                       .authorities = path,
                       .clients = ClientCertificates::kRequired}),
                StartsWith("ssl-ca-certs: "));
  }
}

TEST_F(TlsServerTest, NamesTheSettingsThatFilesOfAnotherPortComeFrom) {
  TlsFiles files = Files(one_);
  files.settings = {.certificate = "cert", .key = "key", .authorities = "ca"};
  files.key = Write("other", two_.key_pem());
  EXPECT_EQ(Error(files), "key: " + files.key + " is not the key of the certificate in --cert");
  files.key.clear();
  EXPECT_THAT(Error(files), AllOf(StartsWith("cert: "), HasSubstr("no --key is given")));
  files = Files(one_);
  files.settings = {.certificate = "cert", .key = "key", .authorities = "ca"};
  files.authorities = Path("none");
  files.clients = ClientCertificates::kRequired;
  EXPECT_THAT(Error(files), StartsWith("ca: "));
  prometheus::Registry registry;
  files.authorities.clear();
  files.clients = ClientCertificates::kNone;
  const auto server = TlsServer::Open(files, 1, registry);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ((*server)->reading().setting(), "cert");
}

TEST_F(TlsServerTest, TakesNoCertificateThatIsNotValidNow) {
  const TestCertificate old = MakeTestCertificate({.name = "old", .lifetime = absl::Minutes(30)});
  EXPECT_THAT(Error(Files(old)), AllOf(StartsWith("ssl-certfile: "), HasSubstr("expired on 20")));
}

class FollowTest : public TlsServerTest {
 protected:
  void Start() {
    auto server = TlsServer::Open(Files(one_), 1, registry_, clock_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::string Subject() const { return server_->context()->subject(); }
  void WaitFor(const std::string& subject) const {
    for (int i = 0; i < 1000 && Subject() != subject; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(Subject(), subject);
  }

  double expiry() { return registry_.Collect().at(0).metric.at(0).gauge.value; }

  prometheus::Registry registry_;
  ManualClock clock_;
  std::unique_ptr<TlsServer> server_;
};

TEST_F(FollowTest, FollowsFilesThatChangeOneAfterTheOther) {
  Start();
  const std::shared_ptr<const TlsContext> before = server_->context();
  Write("cert.pem", two_.certificate_pem());
  for (int i = 0; i < 2000 && !server_->reading().failing(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(server_->reading().failing()) << "the key is of the old one still";
  EXPECT_EQ(Subject(), "CN=one");
  Write("key.pem", two_.key_pem());
  WaitFor("CN=two");
  EXPECT_EQ(before->subject(), "CN=one");
}

TEST_F(FollowTest, ABrokenFileChangesNothingAndIsReadAgain) {
  Start();
  Write("cert.pem", "nonsense");
  server_->Reload();
  EXPECT_EQ(Subject(), "CN=one");
  Files(two_);
  WaitFor("CN=two");
}

TEST_F(FollowTest, FilesThatCouldNotBeReadAreReadAgainThoughTheyHaveNotChanged) {
  if (std::getenv("MILLRACE_SANITIZED") != nullptr) {
    GTEST_SKIP() << "a sanitizer needs file descriptors of its own";
  }
  Start();
  const std::string certificate = Write("next_cert.pem", two_.certificate_pem());
  const std::string key = Write("next_key.pem", two_.key_pem());
  rlimit files;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  const rlimit none = {.rlim_cur = 0, .rlim_max = files.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  std::filesystem::rename(certificate, Path("cert.pem"));
  std::filesystem::rename(key, Path("key.pem"));
  server_->Reload();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  EXPECT_EQ(Subject(), "CN=one");
  clock_.Advance(std::chrono::seconds(30));
  WaitFor("CN=two");
}

TEST_F(FollowTest, ReloadReadsAtOnce) {
  Start();
  EXPECT_NEAR(expiry(), absl::ToUnixSeconds(absl::Now() + absl::Hours(23)), 600);
  Files(MakeTestCertificate({.name = "long", .lifetime = absl::Hours(1000)}));
  server_->Reload();
  EXPECT_EQ(Subject(), "CN=long");
  EXPECT_NEAR(expiry(), absl::ToUnixSeconds(absl::Now() + absl::Hours(999)), 600);
}

}  // namespace
}  // namespace millrace
