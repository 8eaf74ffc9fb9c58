// Certificates for tests, made as they are asked for.
#ifndef MILLRACE_SERVER_TLS_CERTIFICATES_TEST_UTIL_H_
#define MILLRACE_SERVER_TLS_CERTIFICATES_TEST_UTIL_H_

#include <openssl/x509.h>

#include <memory>
#include <string>

#include "absl/time/time.h"

namespace millrace {

// A key on P-256 and a certificate of it.
struct TestCertificate {
  std::shared_ptr<EVP_PKEY> key;
  std::shared_ptr<X509> certificate;

  std::string certificate_pem() const;
  std::string key_pem() const;
};

struct TestCertificateOptions {
  std::string name = "server";                // the common name; empty: no subject
  std::string alternative_name;               // as "URI:spiffe://a/b"; empty: none
  const TestCertificate* issuer = nullptr;    // null: it signs itself, as an authority does
  absl::Duration lifetime = absl::Hours(24);  // from an hour ago
};

TestCertificate MakeTestCertificate(const TestCertificateOptions& options);

// Replaces a file as tools for certificates do: by renaming.
void WriteTestFile(const std::string& path, const std::string& text);

}  // namespace millrace

#endif  // MILLRACE_SERVER_TLS_CERTIFICATES_TEST_UTIL_H_
