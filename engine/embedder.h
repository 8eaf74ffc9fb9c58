// Makes embeddings: batches, whose inputs become sequences.
#ifndef MILLRACE_ENGINE_EMBEDDER_H_
#define MILLRACE_ENGINE_EMBEDDER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/embedding_batch.h"
#include "engine/engine.h"
#include "engine/engine_parts.h"
#include "text/tokenizer/text_pair.h"

namespace millrace {

// Thread-safe. Each batch has its own lock, which is held where sequences are handed to and come
// from the engine thread.
class Embedder {
 public:
  // `parts` outlives this.
  explicit Embedder(EngineParts* parts) : parts_(*parts) {}

  std::function<void()> Embed(EmbedRequest request,
                              std::function<void(absl::StatusOr<Embeddings>)> done);

  // Called when an input of a batch has ended: `embedding` is its result, or `end` has an error.
  void OnEmbedded(const std::shared_ptr<LiveRequest>& request, absl::Span<const float> embedding,
                  const SequenceEnd& end);

  // Ends the batch early, if it has not ended.
  void Cancel(EmbeddingBatch& batch, CancelReason reason);

 private:
  using Batch = std::shared_ptr<EmbeddingBatch>;

  // The tokens of the first text of the last pair.
  struct FirstText {
    std::shared_ptr<const std::string> text;
    std::vector<Token> tokens;
  };

  void Prepare(const Batch& batch);
  absl::Status EncodeInputs(EmbeddingBatch& batch);
  absl::StatusOr<std::vector<Token>> EncodeInput(const EmbeddingBatch& batch, size_t input) const;
  absl::StatusOr<PairTokens> EncodePair(const EmbeddingBatch& batch, size_t input,
                                        FirstText& first) const;
  absl::Status CheckTokens(const std::string& name, const std::vector<Token>& tokens,
                           const EmbeddingBatch& batch, size_t input) const;
  void HandOver(const Batch& batch);
  void CancelRunning(const EmbeddingBatch& batch, CancelReason reason);
  void End(const Batch& batch);

  EngineParts& parts_;
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_EMBEDDER_H_
