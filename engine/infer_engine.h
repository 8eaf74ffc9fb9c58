// One tensor model being served: requests wait in a bounded queue and run one after the other, each
// on all of the model's threads.
#ifndef MILLRACE_ENGINE_INFER_ENGINE_H_
#define MILLRACE_ENGINE_INFER_ENGINE_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "engine/metrics/metrics.h"
#include "engine/served_model.h"
#include "executors/tensor_model.h"

namespace millrace {

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

// Returns the tensors in the order of `specs`. InvalidArgument: one is missing, there twice or
// unknown.
absl::StatusOr<std::vector<Tensor>> OrderInputs(const std::vector<TensorSpec>& specs,
                                                std::vector<NamedTensor> inputs);

// Returns the indexes of the outputs of these names; of all where there are no names.
// InvalidArgument: one is there twice or unknown.
absl::StatusOr<std::vector<size_t>> ChooseOutputs(const std::vector<TensorSpec>& specs,
                                                  const std::vector<std::string>& names);

// One request on its way. `done` is called once, from some thread, with the model's outputs or why
// there are none.
struct InferCall {
  std::vector<Tensor> inputs;  // in the order of the model's
  std::optional<absl::Time> deadline;
  std::function<void(absl::StatusOr<std::vector<Tensor>>)> done;

 private:
  friend class InferEngine;
  SteadyTime arrival;
  absl::Status end;  // an error: why its result is not wanted any more
};

struct InferOptions {
  std::string model_name;
  int32_t max_waiting = 1024;
  Duration stall_timeout = std::chrono::seconds(10);
  const Clock* clock = &Clock::Real();
};

// Thread-safe.
class InferEngine final : public ServedModel {
 public:
  InferEngine(InferOptions options, std::unique_ptr<TensorModel> model, InferMetrics& metrics);
  InferEngine(const InferEngine&) = delete;
  InferEngine& operator=(const InferEngine&) = delete;
  // Ends what waits, and waits for the run under way.
  ~InferEngine() override;

  const std::string& model_name() const override { return options_.model_name; }
  InferEngine* tensors() override { return this; }
  absl::Time created() const { return created_; }
  const TensorModelInfo& info() const { return model_->info(); }

  // Checks the inputs and queues the call, or ends it at once: InvalidArgument (CheckInputs),
  // ResourceExhausted (--max-waiting), Unavailable (draining).
  void Infer(const std::shared_ptr<InferCall>& call);

  // Counts a request that the endpoint refused, since no call could be made of it.
  void CountInvalid() { metrics_.OnEnd(InferEnd::kInvalid); }

  // Ends the call, if it has not ended, with Cancelled: at once if it waits, and after its run,
  // which nothing can stop, if it runs. May come before Infer.
  void Cancel(const std::shared_ptr<InferCall>& call);

  // Returns stalled if a run has taken longer than --stall-timeout.
  Health health() const override;

  void BeginDrain() override;
  bool WaitIdle(SteadyTime deadline) override;
  void CancelAll() override;

 private:
  using Calls = std::deque<std::shared_ptr<InferCall>>;

  absl::Status Admit(const std::shared_ptr<InferCall>& call);
  void Work();
  absl::StatusOr<std::vector<Tensor>> Run(InferCall& call);
  void End(InferCall& call, absl::StatusOr<std::vector<Tensor>> result);

  const InferOptions options_;
  const std::unique_ptr<TensorModel> model_;  // of the worker, but for info()
  InferMetrics& metrics_;
  const absl::Time created_;

  mutable std::mutex mutex_;  // guards what follows, and each call's `end`
  std::condition_variable changed_;
  Calls waiting_;
  int64_t waiting_bytes_ = 0;  // of their inputs
  std::shared_ptr<InferCall> running_;
  SteadyTime running_since_;
  int unended_ = 0;  // calls that were accepted and whose `done` has not returned
  bool draining_ = false;
  bool closed_ = false;
  std::thread worker_;  // last: it uses what is above
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_INFER_ENGINE_H_
