// An executor runs a model, step by step, on one device or on several that act as one.
#ifndef MILLRACE_EXECUTORS_EXECUTOR_H_
#define MILLRACE_EXECUTORS_EXECUTOR_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "plan/step_plan.h"

namespace millrace {

// The function that makes the score of a pair of texts of a cross-encoder's logit.
enum class ScoreFunction { kIdentity, kSigmoid };

// The properties of a model's embeddings.
struct EmbeddingTraits {
  bool normalized = false;     // they are divided by their length
  bool matryoshka = false;     // their first numbers are embeddings, too (arXiv:2205.13147)
  std::vector<int32_t> sizes;  // with it: how many first numbers; empty: any
  std::string prompt;          // stands before every text that one is made of
};

// A phase of loading a model, and its duration.
struct LoadPhase {
  std::string name;
  double seconds;
};

// A mixture of experts, and how much of it the steps have used since the model was loaded.
struct MixtureUse {
  int32_t experts;       // that the device holds
  int64_t expert_bytes;  // of one expert's weights
  int64_t touched;       // experts that had a token, summed over the steps: their weights were read
};

// Properties of a loaded model.
struct ModelInfo {
  std::string architecture;  // the family's name, "llama"
  std::string digest;    // SHA-256 of the weights, 32 raw bytes; equal exactly if the weights are
  int64_t weight_bytes;  // as placed on the device
  std::vector<int32_t> end_tokens;  // end an answer in addition to the tokenizer's own
  // True if a sequence's numbers depend neither on the rest of the batch nor on how it was cut into
  // steps.
  bool batch_invariant = true;
  // The ranks that the weights are divided among, and whether mixtures are divided by expert. The
  // numbers depend on both.
  int32_t tensor_parallel_size = 1;
  bool expert_parallel = false;
  // Set where tokens can be sampled under masks (WantedLogits::mask), and where masks may also come
  // while a step runs (SetMasks). Submit refuses plans with other masks.
  bool takes_masks = false;
  bool takes_late_masks = false;
  int32_t max_draft_tokens = 0;       // of a row's draft; 0: rows have none
  int32_t max_step_draft_tokens = 0;  // of all drafts of a step together
  StepLimits limits;                  // its state is what a sequence owns on all ranks together
  // The type of keys and values as users name it, e.g. "float16"; both types if they differ.
  std::string kv_type;
  // Set: a cross-encoder, whose embeddings are the logits of pairs of texts (limits.embedding_size
  // is 1), and the function that makes scores of them.
  std::optional<ScoreFunction> score;
  EmbeddingTraits embedding;
  // GPU only: the number of batch sizes whose decode step is a CUDA graph, and of those whose
  // capture failed, which run in a larger graph or kernel by kernel.
  int32_t graphs = 0;
  int32_t graphs_failed = 0;
  std::vector<LoadPhase> load_phases;  // in order
};

// Runs a model. Submit, SetMasks, SetDrafts, Poll and Wait are called by one thread, the engine's;
// workers are the executor's own.
//
// A bad row fails alone (RowResult::status). A failed device fails every step in flight with an
// Unavailable StepResult::status. Submit then refuses everything, and the process should end, since
// an executor does not recover.
//
// Destroying an executor with steps in flight waits for them.
class Executor {
 public:
  virtual ~Executor() = default;

  virtual const ModelInfo& info() const = 0;

  // Registers `wake`, which a worker calls each time a result becomes ready for Poll. It must not
  // block or call back into the executor. Call at most once, before the first Submit.
  virtual void OnResult(std::function<void()> wake) = 0;

  // Queues a step and returns at once. Returns InvalidArgument, with no effect, if the plan
  // violates the contract (see ValidatePlan); ResourceExhausted if kMaxStepsInFlight are in flight;
  // Unavailable if the device has failed.
  virtual absl::Status Submit(StepPlan plan) = 0;

  // Hands masks to steps that were submitted and wait for them (WantedLogits::late_mask). Returns
  // at once. Returns InvalidArgument, with no effect, if a mask has another size than the
  // vocabulary or its place in the step waits for none; Unimplemented if the executor takes no late
  // masks.
  virtual absl::Status SetMasks(std::vector<LateMask> masks) {
    (void)masks;
    return absl::UnimplementedError("this executor takes no masks while a step runs");
  }

  // Hands drafts to the rows of steps that were submitted and wait for them (StepRow::num_draft).
  // Returns at once. Returns InvalidArgument, with no effect, if a draft is longer than its row
  // allows, has a token that the model does not know, or its row waits for none; Unimplemented if
  // the executor takes no drafts.
  virtual absl::Status SetDrafts(std::vector<LateDraft> drafts) {
    (void)drafts;
    return absl::UnimplementedError("this executor takes no drafts");
  }

  // Returns the bytes of memory that each kernel of a step must read and write at least, in kernel
  // order, if each of `rows` sequences gets one token and they have `positions` tokens together.
  // `touched` has the experts of each mixture that get one of these tokens, in the order of the
  // layers; without it they are as many as are expected if every expert is equally likely. Empty if
  // the executor does not run kernels. May be called from any thread.
  virtual std::vector<int64_t> DecodeBytes(int32_t rows, int64_t positions,
                                           absl::Span<const double> touched = {}) const {
    (void)rows, (void)positions, (void)touched;
    return {};
  }

  // Returns the use of each mixture, in the order of the layers. Empty if the model has none or the
  // executor does not count. Called from any thread while no step is in flight.
  virtual absl::StatusOr<std::vector<MixtureUse>> MixtureUses() const {
    return std::vector<MixtureUse>();
  }

  // Measures how fast a kernel that only reads gets through the device's memory, in bytes per
  // second. Takes some milliseconds. Nothing if the device has no such measurement or the
  // executor's memory would fit into its cache. Called from any thread while no step is in flight.
  virtual std::optional<double> MeasureReadRate() const { return std::nullopt; }

  // Returns the oldest finished step not yet returned, if there is one.
  virtual std::optional<StepResult> Poll() = 0;

  // Waits for the oldest step and returns its result, or nullopt if no step is in flight.
  virtual std::optional<StepResult> Wait() = 0;
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_EXECUTOR_H_
