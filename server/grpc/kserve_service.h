// inference.GRPCInferenceService, the Open Inference Protocol.
#ifndef MILLRACE_SERVER_GRPC_KSERVE_SERVICE_H_
#define MILLRACE_SERVER_GRPC_KSERVE_SERVICE_H_

#include <string>

#include "kserve/v2/inference.pb.h"
#include "server/frontend.h"
#include "server/grpc/access.h"
#include "server/grpc/call_service.h"

namespace millrace {

// Every method needs a key where there are keys.
class KserveService {
 public:
  // `frontend` and `access` must outlive the service.
  KserveService(Frontend& frontend, const CallAccess& access, std::string version);

  // Adds its methods, which are called as long as `calls` is.
  void Register(CallService& calls);

  ServerCall* ServerLive(grpc::CallbackServerContext* context,
                         const inference::ServerLiveRequest* request,
                         inference::ServerLiveResponse* response);
  ServerCall* ServerReady(grpc::CallbackServerContext* context,
                          const inference::ServerReadyRequest* request,
                          inference::ServerReadyResponse* response);
  ServerCall* ModelReady(grpc::CallbackServerContext* context,
                         const inference::ModelReadyRequest* request,
                         inference::ModelReadyResponse* response);
  ServerCall* ServerMetadata(grpc::CallbackServerContext* context,
                             const inference::ServerMetadataRequest* request,
                             inference::ServerMetadataResponse* response);
  ServerCall* ModelMetadata(grpc::CallbackServerContext* context,
                            const inference::ModelMetadataRequest* request,
                            inference::ModelMetadataResponse* response);
  ServerCall* ModelInfer(grpc::CallbackServerContext* context,
                         const inference::ModelInferRequest* request,
                         inference::ModelInferResponse* response);

 private:
  Frontend& frontend_;
  const CallAccess& access_;
  const std::string version_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_KSERVE_SERVICE_H_
