// The public reflection protocol over the generated descriptors. gRPC's own plugin would do, but
// for one thing: it answers anyone, and the names of an interface are for those with a key.
#ifndef MILLRACE_SERVER_GRPC_REFLECTION_SERVICE_H_
#define MILLRACE_SERVER_GRPC_REFLECTION_SERVICE_H_

#include <string>
#include <vector>

#include "server/grpc/call_service.h"

namespace millrace {

class ReflectionService {
 public:
  // `services`: the full names that a client may list.
  explicit ReflectionService(std::vector<std::string> services);

  // Adds its method under both names of the protocol, of which newer clients ask for v1 first; it
  // is called as long as `calls` is.
  void Register(CallService& calls);

 private:
  template <typename Request, typename Response>
  ServerCall* Begin(grpc::CallbackServerContext* context);

  const std::vector<std::string> services_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_REFLECTION_SERVICE_H_
