// TLS towards the server, as the flags have it.
#ifndef MILLRACE_LOADTEST_TLS_H_
#define MILLRACE_LOADTEST_TLS_H_

#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "loadtest/options.h"
#include "loadtest/url.h"

namespace millrace {

// The PEM files of the flags, read whole. Empty: the flag is not given.
struct ClientTlsFiles {
  std::string authorities;  // --cacert
  std::string certificate;  // --cert
  std::string key;          // --key, or --cert's file
};

// An error names the flag.
absl::StatusOr<ClientTlsFiles> ReadTlsFiles(const Options& options);

// Thread-safe.
class HttpTls {
 public:
  // An error names the flag.
  static absl::StatusOr<std::unique_ptr<HttpTls>> Make(const Options& options,
                                                       const ServerUrl& url);

  boost::asio::ssl::context& context() { return context_; }

  // Names the server to `stream`, and has its certificate checked for that name.
  template <typename Stream>
  void Prepare(Stream& stream) {
    PrepareSsl(*stream.native_handle());
    if (verifies_) stream.set_verify_callback(boost::asio::ssl::host_name_verification(host_));
  }

 private:
  HttpTls(std::string host, bool verifies);
  void PrepareSsl(SSL& ssl) const;

  const std::string host_;
  const bool verifies_;
  boost::asio::ssl::context context_{boost::asio::ssl::context::tls_client};
};

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_TLS_H_
