// The bases of vllm.grpc.engine.VllmEngine's service and streams, behind which gRPC's templates
// stay (callbacks.h).
#ifndef MILLRACE_SERVER_GRPC_VLLM_CALLBACKS_H_
#define MILLRACE_SERVER_GRPC_VLLM_CALLBACKS_H_

#include <grpcpp/support/server_callback.h>

#include "vllm/engine.grpc.pb.h"

namespace millrace {

namespace vllm_pb = ::vllm::grpc::engine;

class VllmCallbacks : public vllm_pb::VllmEngine::CallbackService {
 protected:
  VllmCallbacks();
  ~VllmCallbacks() override;
};

// The base of one Generate call's stream, as GenerateReactor is of millrace.v1's.
class VllmReactor : public grpc::ServerWriteReactor<vllm_pb::GenerateResponse> {
 protected:
  VllmReactor();
  ~VllmReactor() override;

  // Writes a response. One write runs at a time; `response` must live until OnWriteDone.
  void Write(const vllm_pb::GenerateResponse* response);
  // Writes the last response and ends the call with OK.
  void WriteAndEnd(const vllm_pb::GenerateResponse* response);
  void End(const grpc::Status& status);
};

// Returns a Generate call that ends with `status` before it began.
grpc::ServerWriteReactor<vllm_pb::GenerateResponse>* RefuseVllmGenerate(const grpc::Status& status);

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_VLLM_CALLBACKS_H_
