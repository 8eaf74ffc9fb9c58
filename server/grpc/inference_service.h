// millrace.v1.Inference on gRPC's callback API, but for Generate (generate_call.h): no thread waits
// for a call.
#ifndef MILLRACE_SERVER_GRPC_INFERENCE_SERVICE_H_
#define MILLRACE_SERVER_GRPC_INFERENCE_SERVICE_H_

#include <memory>
#include <optional>
#include <string>

#include "millrace/v1/inference.grpc.pb.h"
#include "server/frontend.h"
#include "server/grpc/access.h"
#include "server/grpc/callbacks.h"

namespace millrace {

// Returns InvalidArgument for a client's id of a request that is not fit to be repeated.
absl::Status CheckRequestId(const std::string& id);

// Returns the call's own deadline; nothing if it has none.
std::optional<absl::Time> Deadline(const grpc::ServerContextBase& context);

// Returns why a call's client takes no more: its deadline has passed, at which gRPC ends it, or it
// went away (Cancelled).
absl::Status GoneStatus(const grpc::ServerContextBase& context);

// Returns a unary call that has ended.
grpc::ServerUnaryReactor* FinishUnary(grpc::CallbackServerContext* context,
                                      const absl::Status& status);

class InferenceService final : public InferenceCallbacks {
 public:
  // `frontend` and `access` must outlive the service.
  InferenceService(Frontend& frontend, const CallAccess& access, std::string version);

  // Checks a call of Generate and makes `generate` of it. Returns the engine that it goes to.
  absl::StatusOr<Engine*> PrepareGenerate(const grpc::ServerContextBase& context,
                                          v1::GenerateRequest request, GenerateRequest& generate);

  grpc::ServerUnaryReactor* Embed(grpc::CallbackServerContext* context,
                                  const v1::EmbedRequest* request,
                                  v1::EmbedResponse* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Infer(grpc::CallbackServerContext* context,
                                  const v1::InferRequest* request,
                                  v1::InferResponse* response) override;
  grpc::ServerUnaryReactor* ModelMetadata(grpc::CallbackServerContext* context,
                                          const v1::ModelMetadataRequest* request,
                                          v1::ModelMetadataResponse* response) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetServerInfoRequest* request,
                                          v1::GetServerInfoResponse* response) override;

 private:
  Frontend& frontend_;
  const CallAccess& access_;
  const std::string version_;
  const absl::Time started_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_INFERENCE_SERVICE_H_
