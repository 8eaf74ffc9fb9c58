// The base of the Open Inference Protocol's service, behind which gRPC's templates stay
// (callbacks.h).
#ifndef MILLRACE_SERVER_GRPC_KSERVE_CALLBACKS_H_
#define MILLRACE_SERVER_GRPC_KSERVE_CALLBACKS_H_

#include "kserve/v2/inference.grpc.pb.h"

namespace millrace {

class KserveCallbacks : public inference::GRPCInferenceService::CallbackService {
 protected:
  KserveCallbacks();
  ~KserveCallbacks() override;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_KSERVE_CALLBACKS_H_
