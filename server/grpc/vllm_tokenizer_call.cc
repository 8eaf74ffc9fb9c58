#include "server/grpc/vllm_tokenizer_call.h"

#include <algorithm>
#include <utility>

namespace millrace {
namespace {

constexpr size_t kChunkBytes = size_t{64} << 10;

}  // namespace

VllmTokenizerCall::VllmTokenizerCall(std::shared_ptr<const TokenizerArchive> archive)
    : archive_(std::move(archive)) {
  const std::lock_guard lock(mutex_);
  WriteNext();
}

void VllmTokenizerCall::WriteNext() {
  const std::string& zip = archive_->zip;
  const size_t size = std::min(kChunkBytes, zip.size() - written_);
  chunk_.set_data(zip.data() + written_, size);
  written_ += size;
  if (written_ < zip.size()) {
    Write(chunk_);
  } else {
    chunk_.set_sha256(archive_->sha256);
    WriteAndEnd(chunk_);
  }
}

void VllmTokenizerCall::OnWriteDone(bool ok) {
  const std::lock_guard lock(mutex_);
  if (written_ == archive_->zip.size()) return;  // the last one ends the call
  if (ok) return WriteNext();
  End(grpc::Status(grpc::StatusCode::CANCELLED, "the client went away"));
  written_ = archive_->zip.size();
}

void VllmTokenizerCall::OnDone() {
  { const std::lock_guard lock(mutex_); }  // what other threads did comes before the end
  delete this;
}

}  // namespace millrace
