// A certificate, its key and the rules of TLS, as one reading of the files found them.
#ifndef MILLRACE_SERVER_TLS_TLS_CONTEXT_H_
#define MILLRACE_SERVER_TLS_TLS_CONTEXT_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

struct ssl_ctx_st;

namespace millrace {

// The demand for clients' certificates; the values are those of --ssl-cert-reqs.
enum class ClientCertificates {
  kNone = 0,      // not asked for
  kOptional = 1,  // verified if the client shows one
  kRequired = 2,  // verified, and a client without one is refused
};

// The settings that files come from, as errors name them, and whose port they are for.
struct TlsSettings {
  std::string_view certificate = "ssl-certfile";
  std::string_view key = "ssl-keyfile";
  std::string_view authorities = "ssl-ca-certs";
  std::string_view revocations = "ssl-crl-file";
  std::string_view speaker = "HTTP and gRPC speak";
};

// PEM files.
struct TlsFiles {
  std::string certificate;  // --ssl-certfile: the chain, the server's own first
  std::string key;          // --ssl-keyfile; empty: it stands in `certificate` too
  std::string authorities;  // --ssl-ca-certs: whose certificates clients show; empty: none
  ClientCertificates clients = ClientCertificates::kNone;
  // --ssl-crl-file: lists of revoked certificates, one of each authority; empty: none is revoked.
  std::string revocations;
  TlsSettings settings = {};
};

// TLS 1.2 and 1.3 with the ciphers of Mozilla's "intermediate" configuration of which all are
// forward secret; no renegotiation, no compression, no session that outlives a connection.
// Constant; thread-safe. A connection keeps the one that it began with.
class TlsContext {
 public:
  // InvalidArgument names the setting: a file that cannot be read or is not PEM, a key that is
  // encrypted or of another certificate, a certificate that is not valid now.
  static absl::StatusOr<std::shared_ptr<const TlsContext>> Load(const TlsFiles& files);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  ssl_ctx_st* get() const { return context_; }
  // The server's certificate has these.
  const std::string& subject() const { return subject_; }
  absl::Time not_after() const { return not_after_; }
  // When the first of the revocation lists expires, from when on no client is believed.
  absl::Time revocations_expire() const { return revocations_expire_; }

 private:
  TlsContext() = default;

  absl::Status LoadCertificate(const TlsFiles& files);
  absl::Status LoadKey(const TlsFiles& files);
  absl::Status LoadAuthorities(const TlsFiles& files);
  absl::Status LoadRevocations(const TlsFiles& files);

  ssl_ctx_st* context_ = nullptr;
  std::string subject_;
  absl::Time not_after_;
  absl::Time revocations_expire_ = absl::InfiniteFuture();
};

// The protocols above TLS, as a client names them by ALPN. One that names others is refused; one
// that names none is not.
enum class TlsProtocol { kHttp1, kHttp2 };

}  // namespace millrace

#endif  // MILLRACE_SERVER_TLS_TLS_CONTEXT_H_
