// Counts of gRPC calls, under the names and labels of go-grpc-prometheus.
#ifndef MILLRACE_ENGINE_METRICS_GRPC_METRICS_H_
#define MILLRACE_ENGINE_METRICS_GRPC_METRICS_H_

#include <string_view>

namespace prometheus {
template <typename T>
class Family;
class Counter;
class Registry;
}  // namespace prometheus

namespace millrace {

// Thread-safe.
class GrpcMetrics {
 public:
  explicit GrpcMetrics(prometheus::Registry& registry);

  // Counts a call that ended. `method` is a registered one's, "/package.Service/Method"; `code`
  // gRPC's number, 0 to 16.
  void OnCall(std::string_view method, int code);

 private:
  prometheus::Family<prometheus::Counter>& handled_;
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_METRICS_GRPC_METRICS_H_
