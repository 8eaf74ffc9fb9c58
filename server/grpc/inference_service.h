// millrace.v1.Inference: all its methods, of which Generate goes on in generate_call.h. No thread
// waits for a call.
#ifndef MILLRACE_SERVER_GRPC_INFERENCE_SERVICE_H_
#define MILLRACE_SERVER_GRPC_INFERENCE_SERVICE_H_

#include <memory>
#include <optional>
#include <string>

#include "millrace/v1/inference.pb.h"
#include "server/frontend.h"
#include "server/grpc/access.h"
#include "server/grpc/call_service.h"
#include "server/grpc/callbacks.h"

namespace millrace {

// Returns InvalidArgument for a client's id of a request that is not fit to be repeated.
absl::Status CheckRequestId(const std::string& id);

// Returns the call's own deadline; nothing if it has none.
std::optional<absl::Time> Deadline(const grpc::ServerContextBase& context);

// Returns why a call's client takes no more: its deadline has passed, at which gRPC ends it, or it
// went away (Cancelled).
absl::Status GoneStatus(const grpc::ServerContextBase& context);

// Returns a call that has ended.
ServerCall* FinishCall(grpc::CallbackServerContext* context, const absl::Status& status);

class InferenceService {
 public:
  // `frontend` and `access` must outlive the service.
  InferenceService(Frontend& frontend, const CallAccess& access, std::string version);

  // Adds its methods but Generate, which are called as long as `calls` is.
  void Register(CallService& calls);

  // Checks whether a call of Generate may be made, before its message is read.
  absl::Status AdmitGenerate(const grpc::ServerContextBase& context,
                             std::shared_ptr<const Tenant>& tenant) const;
  // Checks a call of Generate and makes `generate` of it. Returns the engine that it goes to.
  absl::StatusOr<Engine*> PrepareGenerate(const grpc::ServerContextBase& context,
                                          v1::GenerateRequest request,
                                          std::shared_ptr<const Tenant> tenant,
                                          GenerateRequest& generate);

  ServerCall* Embed(grpc::CallbackServerContext* context, const v1::EmbedRequest* request,
                    v1::EmbedResponse* response);
  ServerCall* Tokenize(grpc::CallbackServerContext* context, const v1::TokenizeRequest* request,
                       v1::TokenizeResponse* response);
  ServerCall* Detokenize(grpc::CallbackServerContext* context, const v1::DetokenizeRequest* request,
                         v1::DetokenizeResponse* response);
  ServerCall* Infer(grpc::CallbackServerContext* context, const v1::InferRequest* request,
                    v1::InferResponse* response);
  ServerCall* ModelMetadata(grpc::CallbackServerContext* context,
                            const v1::ModelMetadataRequest* request,
                            v1::ModelMetadataResponse* response);
  ServerCall* ListModels(grpc::CallbackServerContext* context, const v1::ListModelsRequest* request,
                         v1::ListModelsResponse* response);
  ServerCall* GetServerInfo(grpc::CallbackServerContext* context,
                            const v1::GetServerInfoRequest* request,
                            v1::GetServerInfoResponse* response);

 private:
  Frontend& frontend_;
  const CallAccess& access_;
  const std::string version_;
  const absl::Time started_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_INFERENCE_SERVICE_H_
