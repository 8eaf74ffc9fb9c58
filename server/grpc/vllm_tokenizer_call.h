// One GetTokenizer call of vllm.grpc.engine: an archive in chunks.
#ifndef MILLRACE_SERVER_GRPC_VLLM_TOKENIZER_CALL_H_
#define MILLRACE_SERVER_GRPC_VLLM_TOKENIZER_CALL_H_

#include <cstddef>
#include <memory>
#include <mutex>

#include "server/grpc/callbacks.h"
#include "server/grpc/tokenizer_archive.h"
#include "vllm/common.pb.h"

namespace millrace {

// Deletes itself when gRPC is done with it.
class VllmTokenizerCall final : public ServerCall {
 public:
  explicit VllmTokenizerCall(std::shared_ptr<const TokenizerArchive> archive);

 private:
  // Writes the next chunk, of which there is one.
  void WriteNext();

  void OnWriteDone(bool ok) override;
  void OnDone() override;

  const std::shared_ptr<const TokenizerArchive> archive_;
  std::mutex mutex_;    // guards what follows
  size_t written_ = 0;  // bytes
  ::smg::grpc::common::GetTokenizerChunk chunk_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_VLLM_TOKENIZER_CALL_H_
