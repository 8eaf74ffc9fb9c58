// vllm.grpc.engine.VllmEngine, which routers that tokenize by themselves speak.
#ifndef MILLRACE_SERVER_GRPC_VLLM_SERVICE_H_
#define MILLRACE_SERVER_GRPC_VLLM_SERVICE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "absl/time/time.h"
#include "server/frontend.h"
#include "server/grpc/access.h"
#include "server/grpc/call_service.h"
#include "server/grpc/tokenizer_archive.h"
#include "server/grpc/vllm_call.h"
#include "vllm/common.pb.h"
#include "vllm/engine.pb.h"

namespace millrace {

// Serves the only model: the protocol's requests name none. Every method needs a key where there
// are keys.
class VllmService {
 public:
  // `frontend` and `access` must outlive the service.
  VllmService(Frontend& frontend, const CallAccess& access, std::string version);

  // Adds its methods, which are called as long as `calls` is.
  void Register(CallService& calls);

  ServerCall* Generate(grpc::CallbackServerContext* context,
                       const vllm_pb::GenerateRequest* request);
  ServerCall* Embed(grpc::CallbackServerContext* context, const vllm_pb::EmbedRequest* request,
                    vllm_pb::EmbedResponse* response);
  ServerCall* HealthCheck(grpc::CallbackServerContext* context,
                          const vllm_pb::HealthCheckRequest* request,
                          vllm_pb::HealthCheckResponse* response);
  ServerCall* Abort(grpc::CallbackServerContext* context, const vllm_pb::AbortRequest* request,
                    vllm_pb::AbortResponse* response);
  ServerCall* GetModelInfo(grpc::CallbackServerContext* context,
                           const vllm_pb::GetModelInfoRequest* request,
                           vllm_pb::GetModelInfoResponse* response);
  ServerCall* GetServerInfo(grpc::CallbackServerContext* context,
                            const vllm_pb::GetServerInfoRequest* request,
                            vllm_pb::GetServerInfoResponse* response);
  ServerCall* GetLoads(grpc::CallbackServerContext* context,
                       const vllm_pb::GetLoadsRequest* request,
                       vllm_pb::GetLoadsResponse* response);
  ServerCall* GetTokenizer(grpc::CallbackServerContext* context,
                           const smg_pb::GetTokenizerRequest* request);
  ServerCall* FlushCache(grpc::CallbackServerContext* context,
                         const smg_pb::FlushCacheRequest* request,
                         smg_pb::FlushCacheResponse* response);
  ServerCall* StartProfile(grpc::CallbackServerContext* context,
                           const smg_pb::StartProfileRequest* request,
                           smg_pb::ProfileResponse* response);
  ServerCall* StopProfile(grpc::CallbackServerContext* context,
                          const smg_pb::StopProfileRequest* request,
                          smg_pb::ProfileResponse* response);
  ServerCall* SubscribeKvEvents(grpc::CallbackServerContext* context,
                                const smg_pb::SubscribeKvEventsRequest* request);

 private:
  // A tenant (0: none) and a request's id: a tenant cannot abort another's requests.
  using CallKey = std::pair<uint32_t, std::string>;

  // Returns false if the caller has a call of this id.
  bool Enter(const CallKey& key, const std::shared_ptr<VllmCall>& call);
  void Leave(const CallKey& key);

  // Returns the error of a call that is allowed, and not supported.
  absl::Status Unsupported(const grpc::CallbackServerContext& context, Scope scope,
                           std::string_view why) const;

  Frontend& frontend_;
  const CallAccess& access_;
  const std::string version_;
  const absl::Time started_;
  TokenizerArchives tokenizers_;
  std::mutex mutex_;
  std::map<CallKey, std::weak_ptr<VllmCall>> calls_;  // guarded by mutex_
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_VLLM_SERVICE_H_
