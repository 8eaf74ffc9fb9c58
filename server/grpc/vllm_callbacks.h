// The bases of vllm.grpc.engine.VllmEngine's service and streams, behind which gRPC's templates
// stay (callbacks.h).
#ifndef MILLRACE_SERVER_GRPC_VLLM_CALLBACKS_H_
#define MILLRACE_SERVER_GRPC_VLLM_CALLBACKS_H_

#include <grpcpp/support/server_callback.h>

#include "vllm/common.pb.h"
#include "vllm/engine.grpc.pb.h"

namespace millrace {

namespace vllm_pb = ::vllm::grpc::engine;
namespace smg_pb = ::smg::grpc::common;

class VllmCallbacks : public vllm_pb::VllmEngine::CallbackService {
 protected:
  VllmCallbacks();
  ~VllmCallbacks() override;
};

// The base of one call's stream of responses. Defined for GenerateResponse and GetTokenizerChunk.
template <typename Response>
class VllmReactor : public grpc::ServerWriteReactor<Response> {
 protected:
  VllmReactor();
  ~VllmReactor() override;

  // Writes a response. One write runs at a time; `response` must live until OnWriteDone.
  void Write(const Response* response);
  // Writes the last response and ends the call with OK.
  void WriteAndEnd(const Response* response);
  void End(const grpc::Status& status);
};

// Returns a call that ends with `status` before it began. Defined for the responses of all streams
// of the service.
template <typename Response>
grpc::ServerWriteReactor<Response>* RefuseVllmStream(const grpc::Status& status);

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_VLLM_CALLBACKS_H_
