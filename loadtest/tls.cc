#include "loadtest/tls.h"

#include <openssl/ssl.h>

#include <boost/asio/ip/address.hpp>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "loadtest/files.h"

namespace millrace {
namespace {

namespace asio = boost::asio;
using Error = boost::system::error_code;

constexpr std::string_view kAlpn = "\x08http/1.1";

absl::StatusOr<std::string> ReadFlagsFile(std::string_view flag, const std::string& path) {
  if (path.empty()) return std::string();
  absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return Annotate(text.status(), StrCat("flag --", flag));
  return text;
}

absl::Status Unfit(std::string_view flag, std::string_view path, const Error& error) {
  return absl::InvalidArgumentError(
      StrCat("flag --", flag, ": ", path, " cannot be used: ", error.message()));
}

bool IsAddress(const std::string& host) {
  Error error;
  asio::ip::make_address(host, error);
  return !error;
}

}  // namespace

absl::StatusOr<ClientTlsFiles> ReadTlsFiles(const Options& options) {
  ClientTlsFiles files;
  MILLRACE_ASSIGN_OR_RETURN(files.authorities, ReadFlagsFile("cacert", options.cacert));
  MILLRACE_ASSIGN_OR_RETURN(files.certificate, ReadFlagsFile("cert", options.cert));
  MILLRACE_ASSIGN_OR_RETURN(files.key, ReadFlagsFile("key", options.key));
  if (files.key.empty()) files.key = files.certificate;
  return files;
}

HttpTls::HttpTls(std::string host, bool verifies) : host_(std::move(host)), verifies_(verifies) {}

absl::StatusOr<std::unique_ptr<HttpTls>> HttpTls::Make(const Options& options,
                                                       const ServerUrl& url) {
  MILLRACE_ASSIGN_OR_RETURN(const ClientTlsFiles files, ReadTlsFiles(options));
  std::unique_ptr<HttpTls> tls(new HttpTls(url.host, !options.insecure));
  asio::ssl::context& context = tls->context_;
  Error error;
  context.set_verify_mode(options.insecure ? asio::ssl::verify_none : asio::ssl::verify_peer);
  if (files.authorities.empty()) {
    context.set_default_verify_paths(error);
  } else if (context.add_certificate_authority(asio::buffer(files.authorities), error); error) {
    return Unfit("cacert", options.cacert, error);
  }
  if (!files.certificate.empty()) {
    context.use_certificate_chain(asio::buffer(files.certificate), error);
    if (error) return Unfit("cert", options.cert, error);
    context.use_private_key(asio::buffer(files.key), asio::ssl::context::pem, error);
    if (error) {
      const bool own_file = !options.key.empty();
      return Unfit(own_file ? "key" : "cert", own_file ? options.key : options.cert, error);
    }
  }
  SSL_CTX_set_alpn_protos(context.native_handle(), reinterpret_cast<const uint8_t*>(kAlpn.data()),
                          static_cast<unsigned>(kAlpn.size()));
  return tls;
}

void HttpTls::PrepareSsl(SSL& ssl) const {
  if (!IsAddress(host_)) SSL_set_tlsext_host_name(&ssl, host_.c_str());
}

}  // namespace millrace
