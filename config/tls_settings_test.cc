// The settings of TLS, and flags of other servers that mean them.
#include "config/tls_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "config/load.h"

namespace millrace {
namespace {

using testing::HasSubstr;
using Arguments = std::vector<std::string>;

Settings Load(const Arguments& arguments) {
  const absl::StatusOr<Startup> startup = LoadSettings(arguments, {});
  EXPECT_TRUE(startup.ok()) << startup.status();
  return startup.ok() ? startup->settings : Settings();
}

std::string Error(const Arguments& arguments) {
  const absl::StatusOr<Startup> startup = LoadSettings(arguments, {});
  return startup.ok() ? "(no error)" : std::string(startup.status().message());
}

TEST(TlsSettingsTest, NamesOfVllmAndLlamaCpp) {
  const Settings vllm = Load({"--ssl-certfile=a", "--ssl-keyfile=b", "--ssl-ca-certs=c",
                              "--ssl-cert-reqs=1", "--enable-ssl-refresh"});
  EXPECT_EQ(vllm.ssl_certfile, "a");
  EXPECT_EQ(vllm.ssl_keyfile, "b");
  EXPECT_EQ(vllm.ssl_ca_certs, "c");
  EXPECT_EQ(vllm.ssl_cert_reqs, 1);
  const Settings llama = Load({"--ssl-cert-file", "a", "--ssl-key-file", "b"});
  EXPECT_EQ(llama.ssl_certfile, "a");
  EXPECT_EQ(llama.ssl_keyfile, "b");
}

TEST(TlsSettingsTest, AnAuthorityAloneRequiresCertificates) {
  EXPECT_EQ(Load({"--ssl-certfile=a", "--ssl-ca-certs=c"}).ssl_cert_reqs, 2);
}

TEST(TlsSettingsTest, NoneIsIgnored) {
  for (const std::string name : {"ssl-keyfile", "ssl-ca-certs", "ssl-cert-reqs", "ssl-crl-file"}) {
    EXPECT_EQ(Error({"--" + name + "=1"}),
              "flag --" + name +
                  ": got \"1\", but no --ssl-certfile is given, without which there is no TLS");
  }
  EXPECT_THAT(Error({"--ssl-certfile=a", "--ssl-cert-reqs=2"}),
              HasSubstr("but no --ssl-ca-certs says whose certificates"));
  EXPECT_EQ(Error({"--ssl-certfile=a", "--ssl-cert-reqs=0"}), "(no error)");
  EXPECT_THAT(Error({"--ssl-certfile=a", "--ssl-cert-reqs=3"}), HasSubstr("from 0 to 2"));
  EXPECT_THAT(Error({"--ssl-certfile=a", "--ssl-crl-file=b"}),
              HasSubstr("flag --ssl-crl-file: got \"b\", but no --ssl-ca-certs says whose"));
  EXPECT_THAT(
      Error({"--ssl-certfile=a", "--ssl-ca-certs=c", "--ssl-cert-reqs=0", "--ssl-crl-file=b"}),
      HasSubstr("but by --ssl-cert-reqs 0 no client shows a certificate"));
  EXPECT_EQ(Load({"--ssl-certfile=a", "--ssl-ca-certs=c", "--ssl-crl-file=b"}).ssl_crl_file, "b");
  EXPECT_THAT(Error({"--ssl-ciphers=x"}), HasSubstr("forward secrecy"));
}

}  // namespace
}  // namespace millrace
