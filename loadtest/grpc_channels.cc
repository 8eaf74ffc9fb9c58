#include "loadtest/grpc_channels.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <utility>
#include <vector>

#include "base/status.h"
#include "loadtest/tls.h"

namespace millrace {
namespace {

namespace tls = grpc::experimental;

// Returns credentials that take any server.
std::shared_ptr<grpc::ChannelCredentials> Insecure(const ClientTlsFiles& files) {
  tls::TlsChannelCredentialsOptions options;
  options.set_verify_server_certs(false);
  options.set_check_call_host(false);
  options.set_certificate_verifier(std::make_shared<tls::NoOpCertificateVerifier>());
  if (!files.certificate.empty()) {
    options.set_certificate_provider(std::make_shared<tls::StaticDataCertificateProvider>(
        std::vector<tls::IdentityKeyCertPair>{{files.key, files.certificate}}));
    options.watch_identity_key_cert_pairs();
  }
  return tls::TlsCredentials(options);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcChannels>> GrpcChannels::Make(const Options& options,
                                                                 const ServerUrl& url) {
  std::shared_ptr<grpc::ChannelCredentials> credentials;
  if (!url.has_tls) {
    credentials = grpc::InsecureChannelCredentials();
  } else {
    MILLRACE_ASSIGN_OR_RETURN(const ClientTlsFiles files, ReadTlsFiles(options));
    // gRPC says nothing of a file that it cannot use, but that no connection stands.
    MILLRACE_RETURN_IF_ERROR(HttpTls::Make(options, url).status());
    const bool shows = !files.certificate.empty();
    credentials = options.insecure
                      ? Insecure(files)
                      : grpc::SslCredentials({.pem_root_certs = files.authorities,
                                              .pem_private_key = shows ? files.key : "",
                                              .pem_cert_chain = files.certificate});
  }
  return std::unique_ptr<GrpcChannels>(new GrpcChannels(url.Authority(), std::move(credentials)));
}

GrpcChannels::GrpcChannels(std::string server,
                           std::shared_ptr<grpc::ChannelCredentials> credentials)
    : server_(std::move(server)), credentials_(std::move(credentials)) {}

// Channels to one address share their connection unless they differ in an argument.
std::shared_ptr<grpc::Channel> GrpcChannels::Connect() {
  grpc::ChannelArguments arguments;
  arguments.SetInt("millrace.connection", number_++);
  arguments.SetMaxReceiveMessageSize(-1);
  return grpc::CreateCustomChannel(server_, credentials_, arguments);
}

}  // namespace millrace
