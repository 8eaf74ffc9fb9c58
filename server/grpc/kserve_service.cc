#include "server/grpc/kserve_service.h"

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "engine/request/request_id.h"
#include "server/grpc/callbacks.h"
#include "server/grpc/convert.h"
#include "server/grpc/generate_call.h"
#include "server/grpc/inference_service.h"
#include "server/grpc/kserve_convert.h"
#include "server/kserve/tensor_query.h"

namespace millrace {

KserveService::KserveService(Frontend& frontend, const CallAccess& access, std::string version)
    : frontend_(frontend), access_(access), version_(std::move(version)) {}

void KserveService::Register(CallService& calls) {
  const auto add = [&](std::string_view name, Scope scope, auto method) {
    calls.AddUnary("inference.GRPCInferenceService", name, scope, *this, method);
  };
  add("ServerLive", Scope::kAny, &KserveService::ServerLive);
  add("ServerReady", Scope::kAny, &KserveService::ServerReady);
  add("ModelReady", Scope::kAny, &KserveService::ModelReady);
  add("ServerMetadata", Scope::kAny, &KserveService::ServerMetadata);
  add("ModelMetadata", Scope::kAny, &KserveService::ModelMetadata);
  add("ModelInfer", Scope::kInfer, &KserveService::ModelInfer);
}

ServerCall* KserveService::ServerLive(grpc::CallbackServerContext* context,
                                      const inference::ServerLiveRequest*,
                                      inference::ServerLiveResponse* response) {
  const absl::Status status = access_.Authorize(*context);
  if (status.ok()) response->set_live(frontend_.live());
  return FinishCall(context, status);
}

ServerCall* KserveService::ServerReady(grpc::CallbackServerContext* context,
                                       const inference::ServerReadyRequest*,
                                       inference::ServerReadyResponse* response) {
  const absl::Status status = access_.Authorize(*context);
  if (status.ok()) response->set_ready(frontend_.live() && frontend_.ready());
  return FinishCall(context, status);
}

ServerCall* KserveService::ModelReady(grpc::CallbackServerContext* context,
                                      const inference::ModelReadyRequest* request,
                                      inference::ModelReadyResponse* response) {
  const absl::Status status = access_.Authorize(*context);
  if (status.ok()) {
    const bool known = DescribeModel(frontend_, request->name(), request->version()).ok();
    response->set_ready(known && frontend_.live() && frontend_.ready());
  }
  return FinishCall(context, status);
}

ServerCall* KserveService::ServerMetadata(grpc::CallbackServerContext* context,
                                          const inference::ServerMetadataRequest*,
                                          inference::ServerMetadataResponse* response) {
  const absl::Status status = access_.Authorize(*context);
  if (status.ok()) {
    response->set_name("millrace");
    response->set_version(version_);
  }
  return FinishCall(context, status);
}

ServerCall* KserveService::ModelMetadata(grpc::CallbackServerContext* context,
                                         const inference::ModelMetadataRequest* request,
                                         inference::ModelMetadataResponse* response) {
  if (absl::Status status = access_.Authorize(*context); !status.ok()) {
    return FinishCall(context, status);
  }
  const absl::StatusOr<QueryModel> model =
      DescribeModel(frontend_, request->name(), request->version());
  if (model.ok()) *response = ToProto(*model);
  return FinishCall(context, model.status());
}

ServerCall* KserveService::ModelInfer(grpc::CallbackServerContext* context,
                                      const inference::ModelInferRequest* request,
                                      inference::ModelInferResponse* response) {
  std::shared_ptr<const Tenant> tenant;
  const auto build = [&]() -> absl::StatusOr<TensorQuery> {
    MILLRACE_RETURN_IF_ERROR(access_.Authorize(*context, Scope::kInfer, &tenant));
    return FromProto(*request);
  };
  absl::StatusOr<TensorQuery> query = build();
  if (!query.ok()) return FinishCall(context, query.status());
  query->id = StrCat("infer-", IsFitRequestId(request->id()) ? request->id() : NewRequestId());
  query->tenant = std::move(tenant);
  query->deadline = Deadline(*context);
  query->trace = TraceOf(*context);

  auto* const call = new UnaryCall;
  call->WhenCancelled(RunQuery(
      frontend_, *std::move(query),
      [this, context, call, request, response](absl::StatusOr<std::vector<WireTensor>> outputs) {
        const absl::Status status = outputs.status();
        AddRetryHint(context, status);
        if (status.ok()) {
          const absl::StatusOr<ServedModel*> model = frontend_.Find(request->model_name());
          response->set_model_name(request->model_name().empty() && model.ok()
                                       ? (*model)->model_name()
                                       : request->model_name());
          response->set_model_version(std::string(kModelVersion));
          response->set_id(request->id());
          SetOutputs(*std::move(outputs), request->raw_input_contents_size() > 0, *response);
        }
        call->End(ToGrpc(status));
      }));
  return call;
}

}  // namespace millrace
