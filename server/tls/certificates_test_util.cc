#include "server/tls/certificates_test_util.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <fstream>

namespace millrace {
namespace {

template <typename Write>
std::string Pem(Write write) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> out(BIO_new(BIO_s_mem()), BIO_free);
  EXPECT_EQ(write(out.get()), 1);
  char* text = nullptr;
  const auto size = BIO_get_mem_data(out.get(), &text);
  return {text, static_cast<size_t>(size)};
}

void AddExtension(X509& certificate, int kind, const std::string& value) {
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, nullptr, kind, value.c_str());
  ASSERT_NE(extension, nullptr) << value;
  X509_add_ext(&certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

}  // namespace

std::string TestCertificate::certificate_pem() const {
  return Pem([this](BIO* out) { return PEM_write_bio_X509(out, certificate.get()); });
}

std::string TestCertificate::key_pem() const {
  return Pem([this](BIO* out) {
    return PEM_write_bio_PrivateKey(out, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
}

TestCertificate MakeTestCertificate(const TestCertificateOptions& options) {
  static int64_t serial = 1;
  TestCertificate made = {.key = {EVP_EC_gen("P-256"), EVP_PKEY_free},
                          .certificate = {X509_new(), X509_free}};
  X509& certificate = *made.certificate;
  X509_set_version(&certificate, X509_VERSION_3);
  ASN1_INTEGER_set_int64(X509_get_serialNumber(&certificate), serial++);
  constexpr int64_t kHour = 3600;
  X509_gmtime_adj(X509_getm_notBefore(&certificate), -kHour);
  X509_gmtime_adj(X509_getm_notAfter(&certificate), absl::ToInt64Seconds(options.lifetime) - kHour);
  X509_set_pubkey(&certificate, made.key.get());
  if (!options.name.empty()) {
    X509_NAME_add_entry_by_txt(X509_get_subject_name(&certificate), "CN", MBSTRING_UTF8,
                               reinterpret_cast<const unsigned char*>(options.name.c_str()), -1, -1,
                               0);
  }
  const TestCertificate& issuer = options.issuer == nullptr ? made : *options.issuer;
  X509_set_issuer_name(&certificate, X509_get_subject_name(issuer.certificate.get()));
  if (options.issuer == nullptr) AddExtension(certificate, NID_basic_constraints, "CA:TRUE");
  if (!options.alternative_name.empty()) {
    AddExtension(certificate, NID_subject_alt_name, options.alternative_name);
  }
  EXPECT_GT(X509_sign(&certificate, issuer.key.get(), EVP_sha256()), 0);
  return made;
}

void WriteTestFile(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".new";
  std::ofstream(temporary) << text;
  ASSERT_EQ(std::rename(temporary.c_str(), path.c_str()), 0);
}

}  // namespace millrace
