#include "server/grpc/vllm_callbacks.h"

#include "server/grpc/callbacks.h"

namespace millrace {
namespace {

class Refused final : public grpc::ServerWriteReactor<vllm_pb::GenerateResponse> {
 public:
  explicit Refused(const grpc::Status& status) {
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

VllmCallbacks::VllmCallbacks() = default;
VllmCallbacks::~VllmCallbacks() = default;

VllmReactor::VllmReactor() = default;
VllmReactor::~VllmReactor() = default;

void VllmReactor::Write(const vllm_pb::GenerateResponse* response) { StartWrite(response); }

void VllmReactor::WriteAndEnd(const vllm_pb::GenerateResponse* response) {
  StartWriteAndFinish(response, grpc::WriteOptions(), grpc::Status::OK);
}

void VllmReactor::End(const grpc::Status& status) { Finish(status); }

grpc::ServerWriteReactor<vllm_pb::GenerateResponse>* RefuseVllmGenerate(
    const grpc::Status& status) {
  return new Refused(status);
}

}  // namespace millrace
