#include "config/tls_settings.h"

#include "config/setting_makers.h"

namespace millrace {

using setting_makers::Path;
using setting_makers::Whole;

std::vector<Setting> TlsSettings() {
  return {
      Path({"ssl-certfile", "FILE",
            "the server's certificate and its chain (PEM): HTTP and gRPC then speak TLS; read "
            "again when it changes (docs/security.md)"},
           &Settings::ssl_certfile),
      Path({"ssl-keyfile", "FILE",
            "the key of --ssl-certfile (PEM, no passphrase). Without it: the same file has it"},
           &Settings::ssl_keyfile),
      Path({"ssl-ca-certs", "FILE",
            "the authorities of clients' certificates (PEM): then clients must show one"},
           &Settings::ssl_ca_certs),
      Whole({"ssl-cert-reqs", "N",
             "what --ssl-ca-certs asks of clients; 2: a certificate; 1: a valid one or none; 0: "
             "nothing"},
            &Settings::ssl_cert_reqs, 0, 2),
      Path({"ssl-crl-file", "FILE",
            "revocation lists (PEM), one of each authority of --ssl-ca-certs: clients whose "
            "certificates they name are refused; read again when it changes"},
           &Settings::ssl_crl_file),
  };
}

std::optional<Contradicted> CheckTls(const Settings& s,
                                     const std::function<bool(std::string_view name)>& is_given) {
  for (const std::string_view name :
       {"ssl-keyfile", "ssl-ca-certs", "ssl-cert-reqs", "ssl-crl-file"}) {
    if (is_given(name) && s.ssl_certfile.empty()) {
      return Contradicted{name, "but no --ssl-certfile is given, without which there is no TLS"};
    }
  }
  if (is_given("ssl-cert-reqs") && s.ssl_cert_reqs > 0 && s.ssl_ca_certs.empty()) {
    return Contradicted{"ssl-cert-reqs",
                        "but no --ssl-ca-certs says whose certificates clients may show"};
  }
  if (!s.ssl_crl_file.empty() && s.ssl_ca_certs.empty()) {
    return Contradicted{"ssl-crl-file",
                        "but no --ssl-ca-certs says whose certificates clients may show"};
  }
  if (!s.ssl_crl_file.empty() && s.ssl_cert_reqs == 0) {
    return Contradicted{"ssl-crl-file", "but by --ssl-cert-reqs 0 no client shows a certificate"};
  }
  return std::nullopt;
}

}  // namespace millrace
