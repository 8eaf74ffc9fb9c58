#include "server/grpc/call_service.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <mutex>
#include <optional>
#include <string>

#include "base/status.h"
#include "base/strings.h"
#include "server/grpc/convert.h"
#include "server/grpc/generate_call.h"
#include "server/grpc/inference_service.h"

namespace millrace {
namespace {

using google::protobuf::Message;
using google::protobuf::io::CodedInputStream;

// A call that needs no key sends a name at the most.
constexpr MessageLimits kOpenLimits = {.parts = 64, .bytes = 4096};

// Returns what a message becomes, as Measure.
absl::StatusOr<size_t> Measure(const MessageBounds& bounds, const MessageLimits& limits,
                               grpc::ByteBuffer& bytes) {
  grpc::ProtoBufferReader reader(&bytes);
  if (!reader.status().ok()) return absl::DataLossError("no message");
  CodedInputStream input(&reader);
  return bounds.Measure(input, limits);
}

bool Parse(grpc::ByteBuffer& bytes, Message& message) {
  grpc::ProtoBufferReader reader(&bytes);
  return reader.status().ok() && message.ParseFromZeroCopyStream(&reader);
}

}  // namespace

absl::Status ReadMessage(std::string_view method, const MessageBounds& bounds,
                         const MessageLimits& limits, grpc::ByteBuffer& bytes,
                         TenantBudget::Share& share, Message& message) {
  const size_t raw = bytes.Length();
  MILLRACE_RETURN_IF_ERROR(share.Take(raw));
  const auto read = [&]() -> absl::Status {
    MILLRACE_ASSIGN_OR_RETURN(const size_t size, Measure(bounds, limits, bytes));
    MILLRACE_RETURN_IF_ERROR(share.Take(size));
    return Parse(bytes, message) ? absl::OkStatus() : absl::DataLossError("no protobuf");
  };
  absl::Status status = read();
  if (absl::IsDataLoss(status)) {
    status = absl::InvalidArgumentError(BrokenMessage(method).error_message());
  }
  bytes.Clear();
  share.Give(raw);
  return status;
}

// gRPC's end of one call. Deletes itself.
class CallService::End final : public grpc::ServerGenericBidiReactor, public CallEnd {
 public:
  End(CallService& service, grpc::GenericCallbackServerContext* context)
      : context_(context), method_(service.Find(context->method())) {
    if (method_ == nullptr) {
      Close({grpc::StatusCode::UNIMPLEMENTED,
             StrCat("there is no method ", Printable(context->method()), " on this server")});
      return;
    }
    if (method_->scope.has_value()) {
      absl::StatusOr<std::string> tenant = service.admit_(*context, *method_->scope);
      if (!tenant.ok()) {
        Refuse(tenant.status());
        return;
      }
      share_.emplace(service.budget_, *std::move(tenant));
    } else {
      share_.emplace(service.open_budget_, "");
    }
    if (method_->is_dialogue) {
      StartSendInitialMetadata();  // the client may take its time to say something
      BeginWith(nullptr, nullptr);
    }
    Read();
  }

  void Do(Step step) override {
    if (!step.bytes.has_value()) {
      if (response_ == nullptr || !step.end->ok()) return Close(*step.end);
      step.bytes = Serialize(*response_);
    }
    sent_ = *std::move(step.bytes);
    if (step.end.has_value()) {
      // The client may take its time to read the response.
      request_.reset();
      response_.reset();
      share_->GiveAll();
      Pass();
      StartWriteAndFinish(&sent_, grpc::WriteOptions(), *step.end);
    } else {
      Pass();
      StartWrite(&sent_);
    }
  }

  void Read() override {
    Pass();
    StartRead(&bytes_);
  }

 private:
  // gRPC calls what follows one after the other, on any of its threads. How it orders them lies in
  // a library that ThreadSanitizer does not see into: so each passes when it begins, and before it
  // hands on.
  void Pass() { const std::lock_guard lock(mutex_); }

  void Close(const grpc::Status& status) {
    Pass();
    Finish(status);
  }

  void OnReadDone(bool ok) override {
    Pass();
    if (method_->is_dialogue) return OnNextMessage(ok);
    if (!ok) {
      // It is gone, or has ended its side without a message.
      return Close(context_->IsCancelled() ? ToGrpc(GoneStatus(*context_))
                                           : BrokenMessage(context_->method()));
    }
    request_.reset(method_->request->New());
    if (const absl::Status status = ReadInto(*request_, *share_); !status.ok()) {
      return Refuse(status);
    }
    if (method_->response != nullptr) response_.reset(method_->response->New());
    BeginWith(request_.get(), response_.get());
  }

  void OnNextMessage(bool ok) {
    if (!ok) return call_->OnMessage(nullptr);
    const std::unique_ptr<Message> message(method_->request->New());
    TenantBudget::Share share(share_->budget(), share_->tenant());
    if (const absl::Status status = ReadInto(*message, share); !status.ok()) {
      return Refuse(status);
    }
    call_->OnMessage(message.get());
  }

  absl::Status ReadInto(Message& message, TenantBudget::Share& share) {
    return ReadMessage(context_->method(), *method_->bounds, method_->limits, bytes_, share,
                       message);
  }

  void BeginWith(const Message* request, Message* response) {
    ServerCall* const call = method_->begin(context_, request, response);
    bool cancelled = false;
    {
      const std::lock_guard lock(mutex_);
      call_ = call;
      cancelled = cancelled_;
    }
    if (response == nullptr) {  // a stream needs its request no more
      request_.reset();
      share_->GiveAll();
    }
    call->Bind(*this);
    if (cancelled) call->OnCancel();
  }

  void Refuse(const absl::Status& status) {
    AddRetryHint(context_, status);
    Close(ToGrpc(status));
  }

  void OnWriteDone(bool ok) override {
    Pass();
    call_->OnWriteDone(ok);
  }

  void OnCancel() override {
    ServerCall* call = nullptr;
    {
      const std::lock_guard lock(mutex_);
      cancelled_ = true;
      call = call_;
    }
    if (call != nullptr) call->OnCancel();
  }

  void OnDone() override {
    Pass();
    if (call_ != nullptr) call_->OnDone();
    delete this;
  }

  grpc::GenericCallbackServerContext* const context_;
  const Method* const method_;                // null: there is none
  std::optional<TenantBudget::Share> share_;  // once the call is admitted
  grpc::ByteBuffer bytes_;                    // of the message that is read
  grpc::ByteBuffer sent_;                     // of the response that is written
  std::unique_ptr<Message> request_;
  std::unique_ptr<Message> response_;

  std::mutex mutex_;
  ServerCall* call_ = nullptr;  // written under mutex_
  bool cancelled_ = false;      // guarded by mutex_
};

CallService::CallService(Admit admit, TenantBudget& budget)
    : admit_(std::move(admit)), budget_(budget) {}
CallService::~CallService() = default;

void CallService::Add(std::string_view service, std::string_view name, Method method) {
  method.bounds = std::make_shared<MessageBounds>(method.request->GetDescriptor());
  if (!method.scope.has_value()) method.limits = kOpenLimits;
  methods_.emplace(StrCat("/", service, "/", name), std::move(method));
}

const CallService::Method* CallService::Find(const std::string& path) const {
  const auto found = methods_.find(path);
  return found == methods_.end() ? nullptr : &found->second;
}

grpc::ServerGenericBidiReactor* CallService::CreateReactor(
    grpc::GenericCallbackServerContext* context) {
  return new End(*this, context);
}

}  // namespace millrace
