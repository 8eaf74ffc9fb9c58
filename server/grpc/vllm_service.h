// vllm.grpc.engine.VllmEngine, which routers that tokenize by themselves speak.
#ifndef MILLRACE_SERVER_GRPC_VLLM_SERVICE_H_
#define MILLRACE_SERVER_GRPC_VLLM_SERVICE_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "server/frontend.h"
#include "server/grpc/vllm_call.h"
#include "server/grpc/vllm_callbacks.h"

namespace millrace {

// Serves the only model: the protocol's requests name none. Every method needs a key where there
// are keys.
class VllmService final : public VllmCallbacks {
 public:
  // `frontend` must outlive the service.
  explicit VllmService(Frontend& frontend);

  grpc::ServerWriteReactor<vllm_pb::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const vllm_pb::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* Embed(grpc::CallbackServerContext* context,
                                  const vllm_pb::EmbedRequest* request,
                                  vllm_pb::EmbedResponse* response) override;
  grpc::ServerUnaryReactor* HealthCheck(grpc::CallbackServerContext* context,
                                        const vllm_pb::HealthCheckRequest* request,
                                        vllm_pb::HealthCheckResponse* response) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const vllm_pb::AbortRequest* request,
                                  vllm_pb::AbortResponse* response) override;
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const vllm_pb::GetModelInfoRequest* request,
                                         vllm_pb::GetModelInfoResponse* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const vllm_pb::GetServerInfoRequest* request,
                                          vllm_pb::GetServerInfoResponse* response) override;

 private:
  // A caller's own id of a request: nobody aborts another tenant's.
  using CallKey = std::pair<const Tenant*, std::string>;

  // Returns false if the caller has a call of this id.
  bool Enter(const CallKey& key, const std::shared_ptr<VllmCall>& call);
  void Leave(const CallKey& key);

  Frontend& frontend_;
  const absl::Time started_;
  std::mutex mutex_;
  std::map<CallKey, std::weak_ptr<VllmCall>> calls_;  // guarded by mutex_
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_VLLM_SERVICE_H_
