#include "server/grpc/callbacks.h"

#include <utility>

namespace millrace {
namespace {

class RefusedGenerate final : public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  explicit RefusedGenerate(const grpc::Status& status) {
    fence_.Pass();
    Finish(status);
  }

 private:
  void OnDone() override {
    fence_.Pass();
    delete this;
  }

  Fence fence_;
};

}  // namespace

InferenceCallbacks::InferenceCallbacks() = default;
InferenceCallbacks::~InferenceCallbacks() = default;

UnaryCall::UnaryCall() = default;
UnaryCall::~UnaryCall() = default;

void UnaryCall::WhenCancelled(std::function<void()> cancel) {
  cancel_ = std::move(cancel);
  fence_.Pass();
}

void UnaryCall::OnCancel() {
  fence_.Pass();
  if (cancel_) cancel_();
}

void UnaryCall::End(const grpc::Status& status) {
  fence_.Pass();
  Finish(status);
}

void UnaryCall::OnDone() {
  fence_.Pass();
  delete this;
}

GenerateReactor::GenerateReactor() = default;
GenerateReactor::~GenerateReactor() = default;

void GenerateReactor::Write(const v1::GenerateResponse* response) { StartWrite(response); }

void GenerateReactor::WriteAndEnd(const v1::GenerateResponse* response) {
  StartWriteAndFinish(response, grpc::WriteOptions(), grpc::Status::OK);
}

void GenerateReactor::End(const grpc::Status& status) { Finish(status); }

grpc::ServerWriteReactor<v1::GenerateResponse>* RefuseGenerate(const grpc::Status& status) {
  return new RefusedGenerate(status);
}

std::string_view FindMetadata(const grpc::CallbackServerContext& context, std::string_view key) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(grpc::string_ref(key.data(), key.size()));
  if (found == metadata.end()) return {};
  return std::string_view(found->second.data(), found->second.size());
}

}  // namespace millrace
