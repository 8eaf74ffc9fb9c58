// The executor of models that run on this process's threads, with any library.
#ifndef MILLRACE_EXECUTORS_HOST_HOST_EXECUTOR_H_
#define MILLRACE_EXECUTORS_HOST_HOST_EXECUTOR_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "executors/executor.h"
#include "executors/host/step_input.h"
#include "executors/slot_results.h"

namespace millrace {

// The most tokens of drafts in a step of a model with state at slots, which keeps what its layers
// are given for them until it is known which are right.
inline constexpr int32_t kMaxStateDraftTokens = 64;

// A loaded model. After construction only the executor's worker thread uses it.
class HostModel {
 public:
  virtual ~HostModel() = default;

  virtual const ModelInfo& info() const = 0;

  // Copies a step's blocks and states on the device, of which there is at least one. An error means
  // that the executor has failed, like a device.
  virtual absl::Status Move(absl::Span<const StateMove> moves) = 0;

  // Runs a step of at least one token. Returns the outcomes of input.samples in order, possibly
  // followed by further entries; valid until the next call. ResourceExhausted fails the step's rows
  // alone: it takes more memory than there is. Any other error means that the executor has failed,
  // like a device.
  virtual absl::StatusOr<absl::Span<const Sampled>> Run(const CpuStepInput& input) = 0;

  // Takes the first tokens of the last Run's drafts, so many of each row, into the states of
  // recurrent layers. Called where a row has a draft and the model has state at slots. An error
  // means that the executor has failed, like a device.
  virtual absl::Status AcceptDrafts(absl::Span<const int32_t> accepted) {
    (void)accepted;
    return absl::OkStatus();
  }

  // Returns an encoder's embeddings of the last Run's rows, [rows, info().limits.embedding_size].
  virtual absl::Span<const float> embeddings() const { return {}; }

  // Executor::MixtureUses.
  virtual std::vector<MixtureUse> mixture_uses() const { return {}; }

  // Returns whether a thread of the model has not come back from a Run that failed. Called once,
  // before destruction. If so, the model and the input of that Run are leaked, since the thread may
  // use them.
  virtual bool Hangs() { return false; }
};

// `drafts`: steps may check drafts. Only for a model whose numbers are the same in rows of any
// length, and that takes AcceptDrafts where it has state at slots.
std::unique_ptr<Executor> MakeHostExecutor(std::unique_ptr<HostModel> model, bool drafts = false);

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_HOST_HOST_EXECUTOR_H_
