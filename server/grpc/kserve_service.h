// inference.GRPCInferenceService, the Open Inference Protocol, on gRPC's callback API.
#ifndef MILLRACE_SERVER_GRPC_KSERVE_SERVICE_H_
#define MILLRACE_SERVER_GRPC_KSERVE_SERVICE_H_

#include <string>

#include "server/frontend.h"
#include "server/grpc/access.h"
#include "server/grpc/kserve_callbacks.h"

namespace millrace {

// Every method needs a key where there are keys.
class KserveService final : public KserveCallbacks {
 public:
  // `frontend` and `access` must outlive the service.
  KserveService(Frontend& frontend, const CallAccess& access, std::string version);

  grpc::ServerUnaryReactor* ServerLive(grpc::CallbackServerContext* context,
                                       const inference::ServerLiveRequest* request,
                                       inference::ServerLiveResponse* response) override;
  grpc::ServerUnaryReactor* ServerReady(grpc::CallbackServerContext* context,
                                        const inference::ServerReadyRequest* request,
                                        inference::ServerReadyResponse* response) override;
  grpc::ServerUnaryReactor* ModelReady(grpc::CallbackServerContext* context,
                                       const inference::ModelReadyRequest* request,
                                       inference::ModelReadyResponse* response) override;
  grpc::ServerUnaryReactor* ServerMetadata(grpc::CallbackServerContext* context,
                                           const inference::ServerMetadataRequest* request,
                                           inference::ServerMetadataResponse* response) override;
  grpc::ServerUnaryReactor* ModelMetadata(grpc::CallbackServerContext* context,
                                          const inference::ModelMetadataRequest* request,
                                          inference::ModelMetadataResponse* response) override;
  grpc::ServerUnaryReactor* ModelInfer(grpc::CallbackServerContext* context,
                                       const inference::ModelInferRequest* request,
                                       inference::ModelInferResponse* response) override;

 private:
  Frontend& frontend_;
  const CallAccess& access_;
  const std::string version_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_KSERVE_SERVICE_H_
