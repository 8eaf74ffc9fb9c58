#include "server/grpc/health_service.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "server/grpc/inference_service.h"

namespace millrace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using grpc::health::v1::HealthListRequest;
using grpc::health::v1::HealthListResponse;

// One Watch call. A state that comes while another is written waits; of several only the last is
// sent.
class HealthService::WatchCall final : public ServerCall {
 public:
  WatchCall(HealthService& service, bool known) : service_(service), known_(known) {}

  void Begin(const std::shared_ptr<WatchCall>& self, ServingStatus status) {
    const std::lock_guard lock(mutex_);
    self_ = self;
    Tell(status);
  }

  void OnStatus(ServingStatus status) {
    const std::lock_guard lock(mutex_);
    Tell(status);
  }

  // Sends the last state and ends the call.
  void EndWith(ServingStatus status) {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    Tell(status);
  }

  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    if (!ok) closing_ = true;
    if (!ok) wanted_ = sent_;
    Advance();
  }

  void OnCancel() override {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    wanted_ = sent_;
    Advance();
  }

  void OnDone() override {
    std::shared_ptr<WatchCall> self;  // goes away last, after the lock
    {
      const std::lock_guard lock(mutex_);
      self.swap(self_);
    }
    service_.Remove(self);
  }

 private:
  // With mutex_ held, as Advance.
  void Tell(ServingStatus status) {
    wanted_ = known_ ? status : HealthCheckResponse::SERVICE_UNKNOWN;
    Advance();
  }

  void Advance() {
    if (writing_ || finished_) return;
    if (wanted_ != sent_) {
      sent_ = wanted_;
      response_.set_status(*sent_);
      writing_ = true;
      Write(response_);
    } else if (closing_) {
      finished_ = true;
      End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server is shutting down"));
    }
  }

  HealthService& service_;
  const bool known_;
  std::mutex mutex_;
  std::shared_ptr<WatchCall> self_;      // until gRPC is done with the call
  std::optional<ServingStatus> wanted_;  // what the client shall know
  std::optional<ServingStatus> sent_;
  HealthCheckResponse response_;  // being written
  bool writing_ = false;
  bool closing_ = false;
  bool finished_ = false;
};

HealthService::HealthService(std::vector<std::string> services) : services_(std::move(services)) {}
HealthService::~HealthService() = default;

void HealthService::Register(CallService& calls) {
  constexpr std::string_view kName = "grpc.health.v1.Health";
  calls.AddUnary(kName, "Check", std::nullopt, *this, &HealthService::Check);
  calls.AddUnary(kName, "List", std::nullopt, *this, &HealthService::List);
  calls.AddStream(kName, "Watch", std::nullopt, *this, &HealthService::Watch);
}

bool HealthService::IsKnown(const std::string& service) const {
  return service.empty() ||
         std::find(services_.begin(), services_.end(), service) != services_.end();
}

HealthService::ServingStatus HealthService::Status() const {
  const std::lock_guard lock(mutex_);
  return serving_ ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

void HealthService::Remove(const std::shared_ptr<WatchCall>& call) {
  const std::lock_guard lock(mutex_);
  calls_.erase(call);
}

std::vector<std::shared_ptr<HealthService::WatchCall>> HealthService::calls() const {
  const std::lock_guard lock(mutex_);
  return {calls_.begin(), calls_.end()};
}

void HealthService::Set(bool serving) {
  {
    const std::lock_guard lock(mutex_);
    serving_ = serving && !closed_;
  }
  for (const auto& call : calls()) call->OnStatus(Status());
}

void HealthService::Close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    serving_ = false;
  }
  for (const auto& call : calls()) call->EndWith(HealthCheckResponse::NOT_SERVING);
}

ServerCall* HealthService::Check(grpc::CallbackServerContext* context,
                                 const HealthCheckRequest* request, HealthCheckResponse* response) {
  if (!IsKnown(request->service())) {
    return FinishCall(context, absl::NotFoundError("service: there is no such service"));
  }
  response->set_status(Status());
  return FinishCall(context, absl::OkStatus());
}

ServerCall* HealthService::List(grpc::CallbackServerContext* context, const HealthListRequest*,
                                HealthListResponse* response) {
  const ServingStatus status = Status();
  (*response->mutable_statuses())[""].set_status(status);
  for (const std::string& service : services_) {
    (*response->mutable_statuses())[service].set_status(status);
  }
  return FinishCall(context, absl::OkStatus());
}

ServerCall* HealthService::Watch(grpc::CallbackServerContext*, const HealthCheckRequest* request) {
  const auto call = std::make_shared<WatchCall>(*this, IsKnown(request->service()));
  bool closed = false;
  {
    const std::lock_guard lock(mutex_);
    calls_.insert(call);
    closed = closed_;
  }
  call->Begin(call, Status());
  if (closed) call->EndWith(HealthCheckResponse::NOT_SERVING);
  return call.get();
}

}  // namespace millrace
