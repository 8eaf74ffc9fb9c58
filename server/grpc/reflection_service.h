// The public reflection protocol over the generated descriptors. gRPC's own plugin would do, but
// for one thing: it answers anyone, and the names of an interface are for those with a key.
#ifndef MILLRACE_SERVER_GRPC_REFLECTION_SERVICE_H_
#define MILLRACE_SERVER_GRPC_REFLECTION_SERVICE_H_

#include <string>
#include <vector>

#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "server/grpc/access.h"

namespace millrace {

class ReflectionService final
    : public grpc::reflection::v1alpha::ServerReflection::CallbackService {
 public:
  // `services`: the full names that a client may list. `access` must outlive the service.
  ReflectionService(const CallAccess& access, std::vector<std::string> services);
  ~ReflectionService() override;

  grpc::ServerBidiReactor<grpc::reflection::v1alpha::ServerReflectionRequest,
                          grpc::reflection::v1alpha::ServerReflectionResponse>*
  ServerReflectionInfo(grpc::CallbackServerContext* context) override;

 private:
  const CallAccess& access_;
  const std::vector<std::string> services_;
};

// The same under the protocol's present name, which newer clients ask for first.
class ReflectionServiceV1 final : public grpc::reflection::v1::ServerReflection::CallbackService {
 public:
  // As ReflectionService's.
  ReflectionServiceV1(const CallAccess& access, std::vector<std::string> services);
  ~ReflectionServiceV1() override;

  grpc::ServerBidiReactor<grpc::reflection::v1::ServerReflectionRequest,
                          grpc::reflection::v1::ServerReflectionResponse>*
  ServerReflectionInfo(grpc::CallbackServerContext* context) override;

 private:
  const CallAccess& access_;
  const std::vector<std::string> services_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_REFLECTION_SERVICE_H_
