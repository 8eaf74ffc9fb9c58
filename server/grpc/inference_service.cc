#include "server/grpc/inference_service.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/infer_engine.h"
#include "engine/request/request.h"
#include "engine/request/request_id.h"
#include "engine/request/tenant.h"
#include "server/grpc/convert.h"
#include "server/grpc/generate_call.h"
#include "server/grpc/infer_convert.h"

namespace millrace {
namespace {

// The earlier of the call's deadline and the request's.
template <typename Request>
absl::StatusOr<std::optional<absl::Time>> EarlierDeadline(const grpc::ServerContextBase& context,
                                                          const Request& request) {
  std::optional<absl::Time> deadline = Deadline(context);
  if (!request.has_timeout_ms()) return deadline;
  const int32_t milliseconds = request.timeout_ms();
  if (milliseconds < 1 || milliseconds > kMaxTimeoutMs) {
    return absl::InvalidArgumentError(
        StrCat("timeout_ms is ", milliseconds, "; allowed: 1 to ", kMaxTimeoutMs));
  }
  const absl::Time by_field = absl::Now() + absl::Milliseconds(milliseconds);
  return std::min(deadline.value_or(by_field), by_field);
}

}  // namespace

absl::Status CheckRequestId(const std::string& id) {
  if (id.empty() || IsFitRequestId(id)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat("request_id: ", id.size(), " bytes, or unprintable characters; allowed are at most ",
             kMaxRequestIdBytes, " printable ASCII characters without spaces"));
}

std::optional<absl::Time> Deadline(const grpc::ServerContextBase& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return std::nullopt;
  return absl::FromChrono(deadline);
}

absl::Status GoneStatus(const grpc::ServerContextBase& context) {
  if (Deadline(context).value_or(absl::InfiniteFuture()) - absl::Now() <= kDeadlineSlack) {
    return CancelStatus(CancelReason::kDeadline);
  }
  return absl::CancelledError("the client went away");
}

ServerCall* FinishCall(grpc::CallbackServerContext* context, const absl::Status& status) {
  AddRetryHint(context, status);
  auto* const call = new UnaryCall;
  call->End(ToGrpc(status));
  return call;
}

InferenceService::InferenceService(Frontend& frontend, const CallAccess& access,
                                   std::string version)
    : frontend_(frontend), access_(access), version_(std::move(version)), started_(absl::Now()) {}

void InferenceService::Register(CallService& calls) {
  const auto add = [&](std::string_view name, Scope scope, auto method) {
    calls.AddUnary("millrace.v1.Inference", name, scope, *this, method);
  };
  add("Embed", Scope::kInfer, &InferenceService::Embed);
  add("Tokenize", Scope::kInfer, &InferenceService::Tokenize);
  add("Detokenize", Scope::kInfer, &InferenceService::Detokenize);
  add("Infer", Scope::kInfer, &InferenceService::Infer);
  add("ModelMetadata", Scope::kAny, &InferenceService::ModelMetadata);
  add("ListModels", Scope::kAny, &InferenceService::ListModels);
  add("GetServerInfo", Scope::kAny, &InferenceService::GetServerInfo);
}

absl::Status InferenceService::AdmitGenerate(const grpc::ServerContextBase& context,
                                             std::shared_ptr<const Tenant>& tenant) const {
  return access_.Authorize(context, Scope::kInfer, &tenant);
}

absl::StatusOr<Engine*> InferenceService::PrepareGenerate(const grpc::ServerContextBase& context,
                                                          v1::GenerateRequest request,
                                                          std::shared_ptr<const Tenant> tenant,
                                                          GenerateRequest& generate) {
  MILLRACE_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  MILLRACE_ASSIGN_OR_RETURN(Engine* const engine, frontend_.FindEngine(request.model()));
  const absl::StatusOr<std::optional<absl::Time>> deadline = EarlierDeadline(context, request);
  std::string id = request.request_id();
  MILLRACE_ASSIGN_OR_RETURN(generate, FromProto(std::move(request), engine->info().sampling));
  MILLRACE_RETURN_IF_ERROR(deadline.status());
  generate.id = id.empty() ? "gen-" + NewRequestId() : std::move(id);
  generate.deadline = *deadline;
  generate.tenant = std::move(tenant);
  generate.trace = TraceOf(context);
  return engine;
}

ServerCall* InferenceService::Embed(grpc::CallbackServerContext* context,
                                    const v1::EmbedRequest* request, v1::EmbedResponse* response) {
  Engine* engine = nullptr;
  std::shared_ptr<const Tenant> tenant;
  const auto build = [&]() -> absl::StatusOr<EmbedRequest> {
    MILLRACE_RETURN_IF_ERROR(access_.Authorize(*context, Scope::kInfer, &tenant));
    MILLRACE_RETURN_IF_ERROR(CheckRequestId(request->request_id()));
    MILLRACE_ASSIGN_OR_RETURN(engine, frontend_.FindEngine(request->model()));
    MILLRACE_ASSIGN_OR_RETURN(EmbedRequest built, FromProto(v1::EmbedRequest(*request)));
    MILLRACE_ASSIGN_OR_RETURN(built.deadline, EarlierDeadline(*context, *request));
    return built;
  };
  absl::StatusOr<EmbedRequest> embed = build();
  if (!embed.ok()) return FinishCall(context, embed.status());
  embed->id = request->request_id().empty() ? "embd-" + NewRequestId() : request->request_id();
  embed->tenant = std::move(tenant);
  embed->trace = TraceOf(*context);
  response->set_request_id(embed->id);

  auto* const call = new UnaryCall;
  call->WhenCancelled(engine->Embed(
      *std::move(embed), [context, call, response](const absl::StatusOr<Embeddings>& embeddings) {
        AddRetryHint(context, embeddings.status());
        if (embeddings.ok()) SetEmbeddings(*embeddings, *response);
        call->End(ToGrpc(embeddings.status()));
      }));
  return call;
}

ServerCall* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                       const v1::TokenizeRequest* request,
                                       v1::TokenizeResponse* response) {
  std::shared_ptr<const Tenant> tenant;
  if (absl::Status status = access_.Authorize(*context, Scope::kInfer, &tenant); !status.ok()) {
    return FinishCall(context, status);
  }
  const absl::StatusOr<Engine*> engine = frontend_.FindEngine(request->model());
  if (!engine.ok()) return FinishCall(context, engine.status());
  absl::StatusOr<TokenizeRequest> tokenize = FromProto(v1::TokenizeRequest(*request));
  if (!tokenize.ok()) return FinishCall(context, tokenize.status());
  tokenize->deadline = Deadline(*context);
  tokenize->tenant = std::move(tenant);

  auto* const call = new UnaryCall;
  response->set_max_model_len((*engine)->info().max_model_len);
  call->WhenCancelled((*engine)->Tokenize(
      *std::move(tokenize), [context, call, response](absl::StatusOr<TokenizeResult> result) {
        AddRetryHint(context, result.status());
        if (result.ok()) {
          response->mutable_token_ids()->Add(result->tokens.begin(), result->tokens.end());
          for (std::string& text : result->token_strs) {
            response->add_token_strs(std::move(text));
          }
        }
        call->End(ToGrpc(result.status()));
      }));
  return call;
}

ServerCall* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                         const v1::DetokenizeRequest* request,
                                         v1::DetokenizeResponse* response) {
  std::shared_ptr<const Tenant> tenant;
  if (absl::Status status = access_.Authorize(*context, Scope::kInfer, &tenant); !status.ok()) {
    return FinishCall(context, status);
  }
  const absl::StatusOr<Engine*> engine = frontend_.FindEngine(request->model());
  if (!engine.ok()) return FinishCall(context, engine.status());

  auto* const call = new UnaryCall;
  call->WhenCancelled(
      (*engine)->Detokenize({.tokens = {request->token_ids().begin(), request->token_ids().end()},
                             .deadline = Deadline(*context),
                             .tenant = std::move(tenant),
                             .field = "token_ids"},
                            [context, call, response](absl::StatusOr<std::string> text) {
                              const absl::Status status = text.status();
                              AddRetryHint(context, status);
                              if (status.ok()) response->set_text(*std::move(text));
                              call->End(ToGrpc(status));
                            }));
  return call;
}

ServerCall* InferenceService::Infer(grpc::CallbackServerContext* context,
                                    const v1::InferRequest* request, v1::InferResponse* response) {
  InferEngine* engine = nullptr;
  std::shared_ptr<const Tenant> tenant;
  std::vector<size_t> wanted;
  const auto infer = std::make_shared<InferCall>();
  const auto build = [&]() -> absl::Status {
    MILLRACE_RETURN_IF_ERROR(access_.Authorize(*context, Scope::kInfer, &tenant));
    MILLRACE_ASSIGN_OR_RETURN(engine, frontend_.FindInferEngine(request->model_name()));
    const TensorModelInfo& info = engine->info();
    MILLRACE_ASSIGN_OR_RETURN(std::vector<NamedTensor> inputs, InputsFromProto(*request));
    MILLRACE_ASSIGN_OR_RETURN(infer->inputs, OrderInputs(info.inputs, std::move(inputs)));
    MILLRACE_ASSIGN_OR_RETURN(wanted, ChooseOutputs(info.outputs, OutputNames(*request)));
    if (tenant == nullptr) return absl::OkStatus();
    return tenant->Enter(1, Clock::Real().Now());
  };
  if (absl::Status status = build(); !status.ok()) {
    if (engine != nullptr) engine->CountInvalid();
    return FinishCall(context, status);
  }

  auto* const call = new UnaryCall;
  infer->deadline = Deadline(*context);
  infer->done = [=, wanted = std::move(wanted)](absl::StatusOr<std::vector<Tensor>> outputs) {
    if (tenant != nullptr) tenant->Leave(0, 0, Clock::Real().Now());
    AddRetryHint(context, outputs.status());
    if (outputs.ok()) {
      response->set_model_name(request->model_name().empty() ? engine->model_name()
                                                             : request->model_name());
      response->set_id(request->id());
      bool raw = request->raw_input_contents_size() > 0;
      for (const size_t i : wanted) raw = raw || !HasContents((*outputs)[i].type);
      for (const size_t i : wanted) {
        AddOutput(engine->info().outputs[i].name, std::move((*outputs)[i]), raw, *response);
      }
    }
    call->End(ToGrpc(outputs.status()));
  };
  call->WhenCancelled([engine, infer] { engine->Cancel(infer); });
  engine->Infer(infer);
  return call;
}

ServerCall* InferenceService::ModelMetadata(grpc::CallbackServerContext* context,
                                            const v1::ModelMetadataRequest* request,
                                            v1::ModelMetadataResponse* response) {
  if (absl::Status status = access_.Authorize(*context); !status.ok()) {
    return FinishCall(context, status);
  }
  const absl::StatusOr<InferEngine*> engine = frontend_.FindInferEngine(request->name());
  if (engine.ok()) *response = MetadataToProto(**engine);
  return FinishCall(context, engine.status());
}

ServerCall* InferenceService::ListModels(grpc::CallbackServerContext* context,
                                         const v1::ListModelsRequest*,
                                         v1::ListModelsResponse* response) {
  const absl::Status status = access_.Authorize(*context);
  if (status.ok()) {
    for (ServedModel* model : frontend_.models()) {
      const Engine* const language = model->language();
      for (const std::string& name : frontend_.names(*model)) {
        v1::Model& listed = *response->add_models();
        listed = language != nullptr ? ToProto(language->info()) : ToProto(*model->tensors());
        listed.set_name(name);
      }
    }
  }
  return FinishCall(context, status);
}

ServerCall* InferenceService::GetServerInfo(grpc::CallbackServerContext* context,
                                            const v1::GetServerInfoRequest*,
                                            v1::GetServerInfoResponse* response) {
  const absl::Status status = access_.Authorize(*context);
  if (status.ok()) {
    response->set_version(version_);
    response->set_ready(frontend_.ready());
    response->set_draining(frontend_.draining());
    response->set_uptime_seconds(absl::ToDoubleSeconds(absl::Now() - started_));
  }
  return FinishCall(context, status);
}

}  // namespace millrace
