// The embeddings of one request's texts, as both doors collect them.
#ifndef MILLRACE_SERVER_EMBEDDING_BATCH_H_
#define MILLRACE_SERVER_EMBEDDING_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine.h"

namespace millrace {

inline constexpr size_t kMaxEmbeddingInputs = 2048;  // of one request, as OpenAI has it

struct Embeddings {
  std::vector<std::vector<float>> vectors;  // in the order of the inputs
  int64_t prompt_tokens = 0;
};

// Hands the inputs to the engine, some at a time: one request with many does not fill the queue
// that it shares with others. Destroying it cancels what is unfinished (kClientGone). One thread at
// a time.
class EmbeddingBatch {
 public:
  // `options`: everything but the prompts; an input of several runs under its id with "-<index>".
  // At least one input. `ready`: Engine::Generate's, each time there may be something for Poll.
  EmbeddingBatch(Engine& engine, GenerateRequest options, std::vector<Prompt> inputs,
                 std::function<void()> ready);
  ~EmbeddingBatch();
  EmbeddingBatch(const EmbeddingBatch&) = delete;
  EmbeddingBatch& operator=(const EmbeddingBatch&) = delete;

  // Takes what has come. The embeddings, or the first error, which ends the rest: once. Nothing
  // while there is more to come.
  std::optional<absl::StatusOr<Embeddings>> Poll();

  // Ends what is unfinished. Nothing may be polled for after that.
  void CancelRunning();

 private:
  // Alive in the engine: enough to fill its steps.
  static constexpr size_t kMostAtOnce = 256;

  struct Running {
    size_t index;
    std::shared_ptr<ResponseStream> stream;
  };

  void Submit();

  Engine& engine_;
  const GenerateRequest options_;
  std::vector<Prompt> inputs_;
  const std::function<void()> ready_;
  size_t next_ = 0;  // input to be handed over
  std::vector<Running> running_;
  Embeddings embeddings_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_EMBEDDING_BATCH_H_
