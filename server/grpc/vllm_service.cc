#include "server/grpc/vllm_service.h"

#include <vector>

#include "absl/time/clock.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/request/request_id.h"
#include "engine/request/tenant.h"
#include "server/grpc/callbacks.h"
#include "server/grpc/convert.h"
#include "server/grpc/generate_call.h"
#include "server/grpc/inference_service.h"
#include "server/grpc/vllm_convert.h"
#include "server/grpc/vllm_tokenizer_call.h"

namespace millrace {
namespace {

constexpr char kNoProfiler[] =
    "the server has no profiler; allowed: traces (--otlp-traces-endpoint)";

uint32_t IdOf(const Tenant* tenant) { return tenant == nullptr ? 0 : tenant->id(); }

}  // namespace

VllmService::VllmService(Frontend& frontend, const CallAccess& access, std::string version)
    : frontend_(frontend), access_(access), version_(std::move(version)), started_(absl::Now()) {}

void VllmService::Register(CallService& calls) {
  const auto unary = [&](std::string_view name, Scope scope, auto method) {
    calls.AddUnary("vllm.grpc.engine.VllmEngine", name, scope, *this, method);
  };
  const auto stream = [&](std::string_view name, Scope scope, auto method) {
    calls.AddStream("vllm.grpc.engine.VllmEngine", name, scope, *this, method);
  };
  stream("Generate", Scope::kInfer, &VllmService::Generate);
  unary("Embed", Scope::kInfer, &VllmService::Embed);
  unary("HealthCheck", Scope::kAny, &VllmService::HealthCheck);
  unary("Abort", Scope::kInfer, &VllmService::Abort);
  unary("GetModelInfo", Scope::kAny, &VllmService::GetModelInfo);
  unary("GetServerInfo", Scope::kAny, &VllmService::GetServerInfo);
  unary("GetLoads", Scope::kAny, &VllmService::GetLoads);
  stream("GetTokenizer", Scope::kInfer, &VllmService::GetTokenizer);
  unary("FlushCache", Scope::kAdmin, &VllmService::FlushCache);
  unary("StartProfile", Scope::kAdmin, &VllmService::StartProfile);
  unary("StopProfile", Scope::kAdmin, &VllmService::StopProfile);
  stream("SubscribeKvEvents", Scope::kAny, &VllmService::SubscribeKvEvents);
}

bool VllmService::Enter(const CallKey& key, const std::shared_ptr<VllmCall>& call) {
  const std::lock_guard lock(mutex_);
  return calls_.try_emplace(key, call).second;
}

void VllmService::Leave(const CallKey& key) {
  const std::lock_guard lock(mutex_);
  calls_.erase(key);
}

ServerCall* VllmService::Generate(grpc::CallbackServerContext* context,
                                  const vllm_pb::GenerateRequest* request) {
  Engine* engine = nullptr;
  std::shared_ptr<const Tenant> tenant;
  const auto build = [&]() -> absl::StatusOr<GenerateRequest> {
    MILLRACE_RETURN_IF_ERROR(access_.Authorize(*context, Scope::kInfer, &tenant));
    MILLRACE_RETURN_IF_ERROR(CheckRequestId(request->request_id()));
    MILLRACE_ASSIGN_OR_RETURN(engine, frontend_.FindEngine(""));
    return FromProto(*request);
  };
  absl::StatusOr<GenerateRequest> built = build();
  if (!built.ok()) return FinishCall(context, built.status());
  built->id = request->request_id().empty() ? "gen-" + NewRequestId() : request->request_id();
  built->deadline = Deadline(*context);
  built->trace = TraceOf(*context);
  built->tenant = tenant;

  const CallKey key = {IdOf(tenant.get()), built->id};
  const auto call =
      std::make_shared<VllmCall>(context, VllmOutput::Of(*request), [this, key] { Leave(key); });
  if (!Enter(key, call)) {
    return FinishCall(context,
                      absl::AlreadyExistsError(StrCat("request_id is ", key.second,
                                                      ", which is that of a request under way")));
  }
  call->Begin(*engine, *std::move(built));
  return call.get();
}

ServerCall* VllmService::Embed(grpc::CallbackServerContext* context,
                               const vllm_pb::EmbedRequest* request,
                               vllm_pb::EmbedResponse* response) {
  Engine* engine = nullptr;
  std::shared_ptr<const Tenant> tenant;
  const auto build = [&]() -> absl::StatusOr<EmbedRequest> {
    MILLRACE_RETURN_IF_ERROR(access_.Authorize(*context, Scope::kInfer, &tenant));
    MILLRACE_RETURN_IF_ERROR(CheckRequestId(request->request_id()));
    MILLRACE_ASSIGN_OR_RETURN(engine, frontend_.FindEngine(""));
    return FromProto(*request);
  };
  absl::StatusOr<EmbedRequest> embed = build();
  if (!embed.ok()) return FinishCall(context, embed.status());
  embed->id = request->request_id().empty() ? "embd-" + NewRequestId() : request->request_id();
  embed->deadline = Deadline(*context);
  embed->trace = TraceOf(*context);
  embed->tenant = std::move(tenant);

  auto* const call = new UnaryCall;
  call->WhenCancelled(engine->Embed(
      *std::move(embed), [context, call, response](const absl::StatusOr<Embeddings>& embeddings) {
        AddRetryHint(context, embeddings.status());
        if (embeddings.ok()) {
          response->mutable_embedding()->Add(embeddings->values.begin(), embeddings->values.end());
          response->set_prompt_tokens(static_cast<uint32_t>(embeddings->prompt_tokens));
          response->set_embedding_dim(embeddings->size);
        }
        call->End(ToGrpc(embeddings.status()));
      }));
  return call;
}

ServerCall* VllmService::HealthCheck(grpc::CallbackServerContext* context,
                                     const vllm_pb::HealthCheckRequest*,
                                     vllm_pb::HealthCheckResponse* response) {
  const absl::Status status = access_.Authorize(*context);
  if (status.ok()) {
    const bool live = frontend_.live();
    response->set_healthy(live && frontend_.ready());
    response->set_message(!live                 ? "the device hangs or has failed"
                          : response->healthy() ? "healthy"
                                                : "the server is not ready");
  }
  return FinishCall(context, status);
}

ServerCall* VllmService::Abort(grpc::CallbackServerContext* context,
                               const vllm_pb::AbortRequest* request, vllm_pb::AbortResponse*) {
  std::shared_ptr<const Tenant> tenant;
  const absl::Status status = access_.Authorize(*context, Scope::kInfer, &tenant);
  if (!status.ok()) return FinishCall(context, status);
  std::vector<std::shared_ptr<VllmCall>> calls;
  {
    const std::lock_guard lock(mutex_);
    for (const std::string& id : request->request_ids()) {
      const auto call = calls_.find({IdOf(tenant.get()), id});
      if (call != calls_.end()) calls.push_back(call->second.lock());
    }
  }
  for (const auto& call : calls) {
    if (call != nullptr) call->Abort();
  }
  return FinishCall(context, status);
}

ServerCall* VllmService::GetModelInfo(grpc::CallbackServerContext* context,
                                      const vllm_pb::GetModelInfoRequest*,
                                      vllm_pb::GetModelInfoResponse* response) {
  if (absl::Status status = access_.Authorize(*context); !status.ok()) {
    return FinishCall(context, status);
  }
  const absl::StatusOr<Engine*> engine = frontend_.FindEngine("");
  if (engine.ok()) *response = ModelInfo((*engine)->info());
  return FinishCall(context, engine.status());
}

ServerCall* VllmService::GetServerInfo(grpc::CallbackServerContext* context,
                                       const vllm_pb::GetServerInfoRequest*,
                                       vllm_pb::GetServerInfoResponse* response) {
  if (absl::Status status = access_.Authorize(*context); !status.ok()) {
    return FinishCall(context, status);
  }
  const absl::StatusOr<Engine*> engine = frontend_.FindEngine("");
  if (engine.ok()) {
    {
      const std::lock_guard lock(mutex_);
      response->set_active_requests(static_cast<uint32_t>(calls_.size()));
    }
    response->set_is_paused(!frontend_.takes_work());
    response->set_uptime_seconds(absl::ToDoubleSeconds(absl::Now() - started_));
    response->set_server_type("vllm-grpc");
    response->set_data_parallel_size(1);
    response->set_block_size((*engine)->info().block_size);
    response->set_max_num_seqs((*engine)->info().max_num_seqs);
    response->set_constrained_decoding_start("first_token");
  }
  return FinishCall(context, engine.status());
}

ServerCall* VllmService::GetLoads(grpc::CallbackServerContext* context,
                                  const vllm_pb::GetLoadsRequest* request,
                                  vllm_pb::GetLoadsResponse* response) {
  const auto find = [&]() -> absl::StatusOr<Engine*> {
    MILLRACE_RETURN_IF_ERROR(access_.Authorize(*context));
    if (request->dp_rank() != 0) {
      return absl::InvalidArgumentError(StrCat("dp_rank is ", request->dp_rank(), "; allowed: 0"));
    }
    return frontend_.FindEngine("");
  };
  const absl::StatusOr<Engine*> engine = find();
  if (!engine.ok()) return FinishCall(context, engine.status());
  auto* const call = new UnaryCall;
  const bool asked =
      (*engine)->Report([this, call, response, engine = *engine](const EngineStatus& status) {
        *response = Loads(engine->info(), status, version_);
        call->End(grpc::Status::OK);
      });
  if (!asked) call->End(ToGrpc(absl::UnavailableError("the device does not answer")));
  return call;
}

ServerCall* VllmService::GetTokenizer(grpc::CallbackServerContext* context,
                                      const smg_pb::GetTokenizerRequest*) {
  const auto find = [&]() -> absl::StatusOr<std::shared_ptr<const TokenizerArchive>> {
    MILLRACE_RETURN_IF_ERROR(access_.Authorize(*context, Scope::kInfer));
    MILLRACE_ASSIGN_OR_RETURN(Engine * engine, frontend_.FindEngine(""));
    return tokenizers_.Get(engine->info().tokenizer.path);
  };
  absl::StatusOr<std::shared_ptr<const TokenizerArchive>> archive = find();
  if (!archive.ok()) {
    return FinishCall(context, archive.status());
  }
  return new VllmTokenizerCall(*std::move(archive));
}

absl::Status VllmService::Unsupported(const grpc::CallbackServerContext& context, Scope scope,
                                      std::string_view why) const {
  MILLRACE_RETURN_IF_ERROR(access_.Authorize(context, scope));
  return absl::UnimplementedError(StrCat(why));
}

ServerCall* VllmService::FlushCache(grpc::CallbackServerContext* context,
                                    const smg_pb::FlushCacheRequest*, smg_pb::FlushCacheResponse*) {
  return FinishCall(context, Unsupported(*context, Scope::kAdmin,
                                         "the prefix cache cannot be emptied: what it holds goes "
                                         "as soon as its memory is wanted"));
}

ServerCall* VllmService::StartProfile(grpc::CallbackServerContext* context,
                                      const smg_pb::StartProfileRequest*,
                                      smg_pb::ProfileResponse*) {
  return FinishCall(context, Unsupported(*context, Scope::kAdmin, kNoProfiler));
}

ServerCall* VllmService::StopProfile(grpc::CallbackServerContext* context,
                                     const smg_pb::StopProfileRequest*, smg_pb::ProfileResponse*) {
  return FinishCall(context, Unsupported(*context, Scope::kAdmin, kNoProfiler));
}

ServerCall* VllmService::SubscribeKvEvents(grpc::CallbackServerContext* context,
                                           const smg_pb::SubscribeKvEventsRequest*) {
  return FinishCall(context,
                    Unsupported(*context, Scope::kAny, "events of the KV cache are not published"));
}

}  // namespace millrace
