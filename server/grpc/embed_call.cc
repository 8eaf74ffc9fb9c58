#include "server/grpc/embed_call.h"

#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "server/embedding_batch.h"
#include "server/grpc/convert.h"
#include "server/grpc/generate_call.h"

namespace millrace {
namespace {

// Kept alive by the call, which deletes itself after its end; the engine's `ready` holds it weakly.
class EmbedCall {
 public:
  EmbedCall(grpc::CallbackServerContext* context, v1::EmbedResponse* response)
      : context_(context), response_(response) {}

  void Begin(UnaryCall* call, std::unique_ptr<EmbeddingBatch> batch) {
    {
      const std::lock_guard lock(mutex_);
      call_ = call;
      batch_ = std::move(batch);
    }
    Pump();  // `ready`, or a client's leaving, may have come before.
  }

  // Polls without the lock, one thread at a time: the batch hands more inputs to the engine, which
  // may call back at once.
  void Pump() {
    {
      const std::lock_guard lock(mutex_);
      news_ = true;
      if (batch_ == nullptr || polling_) return;
      polling_ = true;
    }
    while (TakeNews()) {
      if (const auto embeddings = Poll()) return Finish(*embeddings);
    }
  }

  void Cancel() {
    {
      const std::lock_guard lock(mutex_);
      cancelled_ = true;
    }
    Pump();
  }

 private:
  // False: there is nothing more to poll for, and whoever brings news polls next.
  bool TakeNews() {
    const std::lock_guard lock(mutex_);
    if (!news_) polling_ = false;
    return std::exchange(news_, false);
  }

  std::optional<absl::StatusOr<Embeddings>> Poll() {
    {
      const std::lock_guard lock(mutex_);
      if (cancelled_) return absl::CancelledError("the client went away");
    }
    return batch_->Poll();
  }

  // Nobody polls again.
  void Finish(const absl::StatusOr<Embeddings>& embeddings) {
    batch_->CancelRunning();
    if (embeddings.ok()) Fill(*embeddings);
    AddRetryHint(context_, embeddings.status());
    call_->End(ToGrpc(embeddings.status()));
  }

  void Fill(const Embeddings& embeddings) {
    for (const std::vector<float>& values : embeddings.vectors) {
      response_->add_embeddings()->mutable_values()->Add(values.begin(), values.end());
    }
    response_->mutable_usage()->set_prompt_tokens(static_cast<int32_t>(embeddings.prompt_tokens));
  }

  grpc::CallbackServerContext* const context_;
  v1::EmbedResponse* const response_;

  std::mutex mutex_;  // guards what follows
  UnaryCall* call_ = nullptr;
  std::unique_ptr<EmbeddingBatch> batch_;  // null before Begin; then whoever polls works with it
  bool polling_ = false;                   // stays so after the end
  bool news_ = false;
  bool cancelled_ = false;
};

}  // namespace

UnaryCall* BeginEmbed(grpc::CallbackServerContext* context, Engine& engine, GenerateRequest options,
                      std::vector<Prompt> inputs, v1::EmbedResponse* response) {
  auto state = std::make_shared<EmbedCall>(context, response);
  auto* const call = new UnaryCall;
  call->WhenCancelled([state] { state->Cancel(); });
  auto ready = [weak = std::weak_ptr<EmbedCall>(state)] {
    if (const auto alive = weak.lock()) alive->Pump();
  };
  state->Begin(call, std::make_unique<EmbeddingBatch>(engine, std::move(options), std::move(inputs),
                                                      std::move(ready)));
  return call;
}

}  // namespace millrace
