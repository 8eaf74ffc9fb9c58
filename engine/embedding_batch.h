// State of one Embed call, from admission until its response is sent.
#ifndef MILLRACE_ENGINE_EMBEDDING_BATCH_H_
#define MILLRACE_ENGINE_EMBEDDING_BATCH_H_

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "engine/live_request.h"
#include "engine/request/request.h"
#include "scheduler/block_hash.h"

namespace millrace {

// The inputs become sequences of their own, some alive at a time, so that one call with many does
// not fill the queue that all calls share. Each reports its end; the last one ends the batch.
struct EmbeddingBatch {
  // The most sequences with the engine thread at a time: enough to fill its steps.
  static constexpr size_t kMostAtOnce = 256;

  EmbeddingBatch(const Clock& clock, EmbedRequest asked,
                 std::function<void(absl::StatusOr<Embeddings>)> then)
      : request(std::move(asked)), done(std::move(then)), arrival(clock.Now()) {}

  EmbedRequest request;
  const std::function<void(absl::StatusOr<Embeddings>)> done;
  const SteadyTime arrival;
  std::optional<SteadyTime> deadline;
  size_t bytes = 0;                          // of the inputs and of their embeddings
  std::atomic<bool> cancelled_text = false;  // set with `cancelled`: text work ends
  // Guarded by AdmissionControl's lock.
  uint64_t number = 0;          // in the order of arrival
  bool entered_tenant = false;  // it is counted with its tenant
  bool evicted = false;

  std::mutex mutex;  // guards what follows, until `ended`; then the thread that set it owns all
  std::vector<std::optional<int32_t>> second_types;  // of pairs (SequenceRequest)
  std::vector<BlockHashes> hashes;                   // of the prompts (HashesOf)
  std::vector<std::vector<Token>> prompts;  // of the inputs, where they have not been handed over
  size_t next = 0;                          // input to be handed to the engine thread
  absl::flat_hash_set<std::shared_ptr<LiveRequest>> running;
  Embeddings embeddings;
  absl::Status status;                    // not OK: nothing more is handed over
  std::optional<CancelReason> cancelled;  // the reason, if the batch was cancelled
  bool ended = false;
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_EMBEDDING_BATCH_H_
