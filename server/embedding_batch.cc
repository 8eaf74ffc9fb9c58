#include "server/embedding_batch.h"

#include "base/strings.h"

namespace millrace {
namespace {

GenerateRequest Embedding(GenerateRequest options) {
  options.embed = true;
  options.max_tokens = 0;
  return options;
}

}  // namespace

EmbeddingBatch::EmbeddingBatch(Engine& engine, GenerateRequest options, std::vector<Prompt> inputs,
                               std::function<void()> ready)
    : engine_(engine),
      options_(Embedding(std::move(options))),
      inputs_(std::move(inputs)),
      ready_(std::move(ready)) {
  embeddings_.vectors.resize(inputs_.size());
  Submit();
}

EmbeddingBatch::~EmbeddingBatch() { CancelRunning(); }

void EmbeddingBatch::CancelRunning() {
  for (const Running& running : running_) running.stream->Cancel(CancelReason::kClientGone);
  running_.clear();
}

void EmbeddingBatch::Submit() {
  for (; next_ < inputs_.size() && running_.size() < kMostAtOnce; ++next_) {
    GenerateRequest one = options_;
    if (inputs_.size() > 1) one.id = StrCat(options_.id, "-", next_);
    one.prompt = std::move(inputs_[next_]);
    running_.push_back({next_, engine_.Generate(std::move(one), ready_).front()});
  }
}

std::optional<absl::StatusOr<Embeddings>> EmbeddingBatch::Poll() {
  const auto ended = [](const Running& running) { return running.stream == nullptr; };
  for (Running& running : running_) {
    std::optional<OutputEvent> event = running.stream->Next();
    if (!event.has_value()) continue;
    const Finish& finish = *event->finish;  // There is one event, the last.
    running.stream = nullptr;
    embeddings_.prompt_tokens += finish.usage.prompt_tokens;
    embeddings_.vectors[running.index] = std::move(event->embedding);
    if (finish.status.ok()) continue;
    std::erase_if(running_, ended);
    CancelRunning();
    return finish.status;
  }
  std::erase_if(running_, ended);
  Submit();
  if (!running_.empty()) return std::nullopt;
  return std::move(embeddings_);
}

}  // namespace millrace
