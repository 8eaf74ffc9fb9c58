#include "server/grpc/vllm_callbacks.h"

#include "server/grpc/callbacks.h"

namespace millrace {
namespace {

template <typename Response>
class Refused final : public grpc::ServerWriteReactor<Response> {
 public:
  explicit Refused(const grpc::Status& status) {
    fence_.Pass();
    this->Finish(status);
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

template <typename Response>
VllmReactor<Response>::VllmReactor() = default;
template <typename Response>
VllmReactor<Response>::~VllmReactor() = default;

template <typename Response>
void VllmReactor<Response>::Write(const Response* response) {
  this->StartWrite(response);
}

template <typename Response>
void VllmReactor<Response>::WriteAndEnd(const Response* response) {
  this->StartWriteAndFinish(response, grpc::WriteOptions(), grpc::Status::OK);
}

template <typename Response>
void VllmReactor<Response>::End(const grpc::Status& status) {
  this->Finish(status);
}

template <typename Response>
grpc::ServerWriteReactor<Response>* RefuseVllmStream(const grpc::Status& status) {
  return new Refused<Response>(status);
}

template class VllmReactor<vllm_pb::GenerateResponse>;
template class VllmReactor<smg_pb::GetTokenizerChunk>;
template grpc::ServerWriteReactor<vllm_pb::GenerateResponse>* RefuseVllmStream(const grpc::Status&);
template grpc::ServerWriteReactor<smg_pb::GetTokenizerChunk>* RefuseVllmStream(const grpc::Status&);
template grpc::ServerWriteReactor<smg_pb::KvEventBatch>* RefuseVllmStream(const grpc::Status&);

}  // namespace millrace
