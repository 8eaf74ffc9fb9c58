// grpc.health.v1, which answers without a key. gRPC's own service has no List, and its Watch calls
// would hold up the server's end.
#ifndef MILLRACE_SERVER_GRPC_HEALTH_SERVICE_H_
#define MILLRACE_SERVER_GRPC_HEALTH_SERVICE_H_

#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "grpc/health/v1/health.pb.h"
#include "server/grpc/call_service.h"

namespace millrace {

// Thread-safe. All services have the same state, which is NOT_SERVING at first.
class HealthService {
 public:
  // `services`: full names, beside the empty one of the whole server.
  explicit HealthService(std::vector<std::string> services);
  ~HealthService();

  // Adds its methods, which are called as long as `calls` is.
  void Register(CallService& calls);

  // Sets the state, and tells those that watch it.
  void Set(bool serving);
  // Sets NOT_SERVING for good and ends all Watch calls with it, since the server ends.
  void Close();

 private:
  class WatchCall;
  using ServingStatus = grpc::health::v1::HealthCheckResponse::ServingStatus;

  ServerCall* Check(grpc::CallbackServerContext* context,
                    const grpc::health::v1::HealthCheckRequest* request,
                    grpc::health::v1::HealthCheckResponse* response);
  ServerCall* List(grpc::CallbackServerContext* context,
                   const grpc::health::v1::HealthListRequest* request,
                   grpc::health::v1::HealthListResponse* response);
  ServerCall* Watch(grpc::CallbackServerContext* context,
                    const grpc::health::v1::HealthCheckRequest* request);

  bool IsKnown(const std::string& service) const;
  ServingStatus Status() const;
  void Remove(const std::shared_ptr<WatchCall>& call);
  std::vector<std::shared_ptr<WatchCall>> calls() const;

  const std::vector<std::string> services_;
  mutable std::mutex mutex_;
  bool serving_ = false;                                  // guarded by mutex_
  bool closed_ = false;                                   // guarded by mutex_
  std::unordered_set<std::shared_ptr<WatchCall>> calls_;  // guarded by mutex_
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_HEALTH_SERVICE_H_
