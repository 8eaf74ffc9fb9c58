#include "server/tls/tls_context.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "base/regular_file.h"
#include "base/status.h"
#include "base/strings.h"
#include "server/tls/x509_text.h"

namespace millrace {
namespace {

constexpr size_t kMostFileBytes = 8 << 20;
constexpr int64_t kMostClientChainBytes = 32 << 10;
constexpr int kMostClientChain = 8;  // authorities between a client's certificate and ours

// TLS 1.3 has ciphers of its own, which OpenSSL chooses well.
constexpr char kCiphers[] =
    "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384:"
    "ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305";
constexpr char kGroups[] = "X25519:P-256:P-384";

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using RevocationList = std::unique_ptr<X509_CRL, decltype(&X509_CRL_free)>;

absl::Status Bad(std::string_view setting, std::string_view path, std::string_view what) {
  return absl::InvalidArgumentError(StrCat(setting, ": ", path, " ", what));
}

absl::StatusOr<std::string> ReadFile(std::string_view setting, const std::string& path) {
  absl::StatusOr<std::string> text = ReadRegularFile(path, kMostFileBytes);
  if (!text.ok()) {
    return Bad(setting, path, StrCat("cannot be read: ", std::string(text.status().message())));
  }
  return text;
}

Bio Reader(const std::string& text) {
  return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), BIO_free};
}

// Without it OpenSSL would ask for a passphrase on the terminal.
int NoPassphrase(char*, int, int, void*) { return -1; }

Certificate NextCertificate(BIO& reader) {
  return {PEM_read_bio_X509(&reader, nullptr, NoPassphrase, nullptr), X509_free};
}

// The reader ended at the file's end, and not at something that is no certificate.
bool AtEnd() {
  const auto error = ERR_peek_last_error();
  const bool end =
      ERR_GET_LIB(error) == ERR_LIB_PEM && ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  return end;
}

std::string Date(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone());
}

// Takes the server's protocol if the client has named it: the first one that both have, in the
// server's order.
int ChooseProtocol(SSL* ssl, const unsigned char** chosen, unsigned char* chosen_size,
                   const unsigned char* offered, unsigned size, void*) {
  static constexpr std::string_view kHttp2[] = {"h2"};
  static constexpr std::string_view kHttp1[] = {"http/1.1", "http/1.0"};
  const bool http2 = *static_cast<const TlsProtocol*>(SSL_get_app_data(ssl)) == TlsProtocol::kHttp2;
  const std::span<const std::string_view> ours =
      http2 ? std::span<const std::string_view>(kHttp2) : std::span<const std::string_view>(kHttp1);
  for (const std::string_view wanted : ours) {
    for (unsigned at = 0; at < size && at + offered[at] < size; at += 1 + offered[at]) {
      const auto* const name = offered + at + 1;
      if (std::string_view(reinterpret_cast<const char*>(name), offered[at]) != wanted) continue;
      *chosen = name;
      *chosen_size = offered[at];
      return SSL_TLSEXT_ERR_OK;
    }
  }
  return SSL_TLSEXT_ERR_ALERT_FATAL;
}

absl::Status SetRules(SSL_CTX& context) {
  SSL_CTX_set_options(&context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_NO_TICKET |
                                    SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA);
  // A resumed session would pass by the authorities that clients are verified with.
  SSL_CTX_set_session_cache_mode(&context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(&context, 0);
  // The session looks at each record itself: a client could send records without data for ever.
  SSL_CTX_clear_mode(&context, SSL_MODE_AUTO_RETRY);
  SSL_CTX_set_mode(&context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                 SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_read_ahead(&context, 1);
  SSL_CTX_set_max_cert_list(&context, kMostClientChainBytes);
  SSL_CTX_set_alpn_select_cb(&context, ChooseProtocol, nullptr);
  const bool set = SSL_CTX_set_min_proto_version(&context, TLS1_2_VERSION) == 1 &&
                   SSL_CTX_set_cipher_list(&context, kCiphers) == 1 &&
                   SSL_CTX_set1_groups_list(&context, kGroups) == 1;
  if (!set) return absl::InternalError(StrCat("TLS: ", TakeOpenSslError()));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const TlsContext>> TlsContext::Load(const TlsFiles& files) {
  ERR_clear_error();
  std::shared_ptr<TlsContext> made(new TlsContext);
  made->context_ = SSL_CTX_new(TLS_server_method());
  if (made->context_ == nullptr) return absl::InternalError(StrCat("TLS: ", TakeOpenSslError()));
  MILLRACE_RETURN_IF_ERROR(SetRules(*made->context_));
  MILLRACE_RETURN_IF_ERROR(made->LoadCertificate(files));
  MILLRACE_RETURN_IF_ERROR(made->LoadKey(files));
  if (files.clients != ClientCertificates::kNone) {
    MILLRACE_RETURN_IF_ERROR(made->LoadAuthorities(files));
    if (!files.revocations.empty()) MILLRACE_RETURN_IF_ERROR(made->LoadRevocations(files));
  }
  return made;
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

absl::Status TlsContext::LoadCertificate(const TlsFiles& files) {
  const std::string_view setting = files.settings.certificate;
  const std::string& path = files.certificate;
  MILLRACE_ASSIGN_OR_RETURN(const std::string text, ReadFile(setting, path));
  const Bio reader = Reader(text);
  const Certificate own = NextCertificate(*reader);
  if (own == nullptr) return Bad(setting, path, "holds no certificate in PEM form");
  subject_ = NameOf(*own);
  not_after_ = ToTime(*X509_get0_notAfter(own.get()));
  const absl::Time not_before = ToTime(*X509_get0_notBefore(own.get()));
  const absl::Time now = absl::Now();
  if (now > not_after_) {
    return Bad(setting, path, StrCat("has a certificate that expired on ", Date(not_after_)));
  }
  if (now < not_before) {
    return Bad(setting, path, StrCat("has a certificate that is valid from ", Date(not_before)));
  }
  if (SSL_CTX_use_certificate(context_, own.get()) != 1) {
    return Bad(setting, path,
               StrCat("has a certificate that cannot be used: ", TakeOpenSslError()));
  }
  while (const Certificate next = NextCertificate(*reader)) {
    if (SSL_CTX_add1_chain_cert(context_, next.get()) != 1) {
      return Bad(setting, path, StrCat("has a chain that cannot be used: ", TakeOpenSslError()));
    }
  }
  if (!AtEnd()) return Bad(setting, path, "has a certificate that is broken");
  return absl::OkStatus();
}

absl::Status TlsContext::LoadKey(const TlsFiles& files) {
  const bool own_file = !files.key.empty();
  const TlsSettings& settings = files.settings;
  const std::string_view setting = own_file ? settings.key : settings.certificate;
  const std::string& path = own_file ? files.key : files.certificate;
  MILLRACE_ASSIGN_OR_RETURN(const std::string text, ReadFile(setting, path));
  if (text.find("ENCRYPTED") != text.npos) {
    return Bad(setting, path, "has a key with a passphrase; expected one without");
  }
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(
      PEM_read_bio_PrivateKey(Reader(text).get(), nullptr, NoPassphrase, nullptr), EVP_PKEY_free);
  if (key == nullptr) {
    return Bad(setting, path,
               StrCat("holds no private key in PEM form",
                      own_file ? "" : StrCat(", and no --", settings.key, " is given")));
  }
  if (X509_check_private_key(SSL_CTX_get0_certificate(context_), key.get()) != 1) {
    return Bad(setting, path,
               StrCat("is not the key of the certificate in --", settings.certificate));
  }
  if (SSL_CTX_use_PrivateKey(context_, key.get()) != 1) {
    return Bad(setting, path, StrCat("has a key that cannot be used: ", TakeOpenSslError()));
  }
  return absl::OkStatus();
}

absl::Status TlsContext::LoadAuthorities(const TlsFiles& files) {
  const std::string_view setting = files.settings.authorities;
  const std::string& path = files.authorities;
  MILLRACE_ASSIGN_OR_RETURN(const std::string text, ReadFile(setting, path));
  const Bio reader = Reader(text);
  X509_STORE* const store = SSL_CTX_get_cert_store(context_);
  int found = 0;
  while (const Certificate authority = NextCertificate(*reader)) {
    if (X509_STORE_add_cert(store, authority.get()) != 1 ||
        SSL_CTX_add_client_CA(context_, authority.get()) != 1) {
      return Bad(setting, path,
                 StrCat("has a certificate that cannot be used: ", TakeOpenSslError()));
    }
    ++found;
  }
  if (!AtEnd() || found == 0) {
    return Bad(
        setting, path,
        found == 0 ? "holds no certificate in PEM form" : "has a certificate that is broken");
  }
  const bool required = files.clients == ClientCertificates::kRequired;
  SSL_CTX_set_verify(context_, SSL_VERIFY_PEER | (required ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0),
                     nullptr);
  SSL_CTX_set_verify_depth(context_, kMostClientChain);
  return absl::OkStatus();
}

// OpenSSL refuses a client if an authority in its chain has no list, or one that has expired.
absl::Status TlsContext::LoadRevocations(const TlsFiles& files) {
  const std::string_view setting = files.settings.revocations;
  const std::string& path = files.revocations;
  MILLRACE_ASSIGN_OR_RETURN(const std::string text, ReadFile(setting, path));
  const Bio reader = Reader(text);
  X509_STORE* const store = SSL_CTX_get_cert_store(context_);
  int found = 0;
  while (const RevocationList list{
      PEM_read_bio_X509_CRL(reader.get(), nullptr, NoPassphrase, nullptr), X509_CRL_free}) {
    const ASN1_TIME* const next = X509_CRL_get0_nextUpdate(list.get());
    const absl::Time expires = next == nullptr ? absl::InfiniteFuture() : ToTime(*next);
    if (absl::Now() > expires) {
      return Bad(setting, path, StrCat("has a list that expired on ", Date(expires)));
    }
    revocations_expire_ = std::min(revocations_expire_, expires);
    if (X509_STORE_add_crl(store, list.get()) != 1) {
      return Bad(setting, path, StrCat("has a list that cannot be used: ", TakeOpenSslError()));
    }
    ++found;
  }
  if (!AtEnd() || found == 0) {
    return Bad(setting, path,
               found == 0 ? "holds no revocation list in PEM form"
                          : "has a revocation list that is broken");
  }
  X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL);
  return absl::OkStatus();
}

}  // namespace millrace
