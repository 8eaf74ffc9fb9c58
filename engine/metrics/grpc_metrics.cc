#include "engine/metrics/grpc_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/registry.h>

#include <array>
#include <string>

namespace millrace {
namespace {

constexpr std::array<const char*, 17> kCodes = {
    "OK",       "Canceled",       "Unknown",          "InvalidArgument",   "DeadlineExceeded",
    "NotFound", "AlreadyExists",  "PermissionDenied", "ResourceExhausted", "FailedPrecondition",
    "Aborted",  "OutOfRange",     "Unimplemented",    "Internal",          "Unavailable",
    "DataLoss", "Unauthenticated"};

}  // namespace

GrpcMetrics::GrpcMetrics(prometheus::Registry& registry)
    : handled_(prometheus::BuildCounter()
                   .Name("grpc_server_handled_total")
                   .Help("gRPC calls that ended, by how.")
                   .Register(registry)) {}

void GrpcMetrics::OnCall(std::string_view method, int code) {
  const size_t slash = method.rfind('/');
  if (slash == method.npos || slash == 0) return;
  const bool known = code >= 0 && code < static_cast<int>(kCodes.size());
  handled_
      .Add({{"grpc_service", std::string(method.substr(1, slash - 1))},
            {"grpc_method", std::string(method.substr(slash + 1))},
            {"grpc_code", kCodes[known ? code : 2]}})
      .Increment();
}

}  // namespace millrace
