#include "server/endpoint_options.h"

#include <sys/resource.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "base/address_range.h"
#include "base/control_group.h"
#include "base/strings.h"
#include "config/help.h"
#include "config/value.h"

namespace millrace {
namespace {

TransportRules MakeTransportRules(const Settings& settings, TlsServer* tls) {
  TransportRules rules = {.tls = tls, .proxies = {}};
  for (const std::string& range : settings.trusted_proxies) {
    rules.proxies.push_back(*ParseAddressRange(range));
  }
  return rules;
}

// Keeps an endpoint's connections to a share of the file descriptors, so that idle ones give way to
// new ones before there is none left. Those of gRPC take half of them at most (server/guard).
void LimitConnections(HttpLimits& limits, size_t share) {
  rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY) return;
  const size_t most = std::max<size_t>(files.rlim_cur / share, 8);
  limits.connections = std::min(limits.connections, most);
  limits.probe_connections = std::min(limits.probe_connections, std::max<size_t>(most / 4, 4));
}

// Returns what all listeners of HTTP have in common.
HttpOptions MakeBaseOptions(const Settings& settings, size_t share_of_descriptors) {
  HttpOptions http;
  http.unknown_fields = settings.unknown_fields;
  http.auto_tool_choice = settings.enable_auto_tool_choice;
  http.limits.connections = static_cast<size_t>(settings.max_connections);
  http.limits.header_timeout = absl::FromChrono(settings.header_timeout);
  http.limits.write_timeout = absl::FromChrono(settings.unread_timeout);
  http.limits.ping_interval = absl::FromChrono(settings.sse_ping_interval);
  LimitConnections(http.limits, share_of_descriptors);
  return http;
}

}  // namespace

int ShareOfCores(int of_cores, int least, int most) {
  return std::clamp(UsableCores() / of_cores, least, most);
}

TlsFiles TlsFilesOf(const Settings& settings) {
  TlsFiles files = {.certificate = settings.ssl_certfile,
                    .key = settings.ssl_keyfile,
                    .authorities = settings.ssl_ca_certs};
  if (!files.authorities.empty()) {
    files.revocations = settings.ssl_crl_file;
    files.clients = static_cast<ClientCertificates>(settings.ssl_cert_reqs);
  }
  return files;
}

bool SharesPort(const Settings& settings) {
  return settings.http_port != 0 && settings.http_port == settings.grpc_port;
}

HttpOptions MakeHttpOptions(const Settings& settings, TlsServer* tls) {
  HttpOptions http = MakeBaseOptions(settings, 5);
  http.host = settings.host;
  http.port = static_cast<uint16_t>(settings.http_port);
  http.listens = !SharesPort(settings);
  http.allowed_hosts = settings.allowed_hosts;
  http.allowed_origins = settings.allowed_origins;
  // Clients of other machines cannot reach it.
  if (IsLoopback(settings.host) && settings.admin_port != 0) {
    http.console = StrCat("http://127.0.0.1:", settings.admin_port, "/");
  }
  http.threads = ShareOfCores(4, 1, 8);
  http.transport = MakeTransportRules(settings, tls);
  return http;
}

HttpOptions MakeAdminOptions(const Settings& settings) {
  HttpOptions admin = MakeBaseOptions(settings, 32);
  admin.admin = true;
  admin.host = "127.0.0.1";
  admin.port_setting = "admin-port";
  admin.hosts_setting = "admin-allowed-hosts";
  admin.allowed_hosts = settings.admin_allowed_hosts;
  admin.port = static_cast<uint16_t>(settings.admin_port);
  return admin;
}

HttpOptions MakeMetricsOptions(const Settings& settings) {
  HttpOptions metrics = MakeBaseOptions(settings, 32);
  metrics.metrics_only = true;
  metrics.host = settings.metrics_host;
  metrics.host_setting = "metrics-host";
  metrics.port_setting = "metrics-port";
  metrics.hosts_setting = "metrics-allowed-hosts";
  metrics.allowed_hosts = settings.metrics_allowed_hosts;
  metrics.port = static_cast<uint16_t>(settings.metrics_port);
  return metrics;
}

GrpcOptions MakeGrpcOptions(const Settings& settings, TlsServer* tls) {
  GrpcOptions grpc;
  grpc.host = settings.host;
  grpc.port = settings.grpc_port;
  grpc.listens = !SharesPort(settings);
  grpc.version = std::string(Version());
  grpc.threads = ShareOfCores(4, 1, 8);
  grpc.transport = MakeTransportRules(settings, tls);
  grpc.limits.connections = static_cast<size_t>(settings.max_connections);
  grpc.limits.streams = static_cast<size_t>(settings.grpc_max_streams);
  grpc.limits.handshake_timeout = settings.header_timeout;
  grpc.limits.header_timeout = settings.header_timeout;
  grpc.limits.write_timeout = settings.unread_timeout;
  return grpc;
}

SharedPortOptions MakeSharedPortOptions(const Settings& settings, TlsServer* tls) {
  SharedPortOptions shared;
  shared.host = settings.host;
  shared.port = static_cast<uint16_t>(settings.http_port);
  shared.transport = MakeTransportRules(settings, tls);
  shared.connections = static_cast<size_t>(settings.max_connections);
  shared.timeout = settings.header_timeout;
  return shared;
}

}  // namespace millrace
