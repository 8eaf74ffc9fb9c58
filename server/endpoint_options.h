// The endpoints' options, as the settings have them.
#ifndef MILLRACE_SERVER_ENDPOINT_OPTIONS_H_
#define MILLRACE_SERVER_ENDPOINT_OPTIONS_H_

#include <cstddef>

#include "config/settings.h"
#include "server/grpc/grpc_server.h"
#include "server/guard/shared_port.h"
#include "server/http/http_server.h"
#include "server/tls/tls_server.h"

namespace millrace {

// Returns a share of the cores, within bounds.
int ShareOfCores(int of_cores, int least, int most);

TlsFiles TlsFilesOf(const Settings& settings);

// Returns whether HTTP and gRPC have one port. Two ports of 0 are any two.
bool SharesPort(const Settings& settings);

// `tls` is null where the ports are plain, and outlives the endpoints.
HttpOptions MakeHttpOptions(const Settings& settings, TlsServer* tls);
GrpcOptions MakeGrpcOptions(const Settings& settings, TlsServer* tls);
SharedPortOptions MakeSharedPortOptions(const Settings& settings, TlsServer* tls);

// Returns the options of the administration's listener, whose `drain` its owner sets.
HttpOptions MakeAdminOptions(const Settings& settings);
// Returns the options of the listener of --metrics-host.
HttpOptions MakeMetricsOptions(const Settings& settings);

}  // namespace millrace

#endif  // MILLRACE_SERVER_ENDPOINT_OPTIONS_H_
