// Captured decode steps: one CUDA graph per batch size.
#ifndef MILLRACE_EXECUTORS_CUDA_DECODE_GRAPHS_H_
#define MILLRACE_EXECUTORS_CUDA_DECODE_GRAPHS_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "executors/cuda/cuda_model.h"

namespace millrace::cuda {

// The forward pass and sampler of steps of one size. Everything that differs between two such steps
// lies in memory that the graph reads.
struct StepGraph {
  GraphExec graph;
  // Edges between the graph's operations. At a programmatic edge, which joins two of our kernels,
  // the second is set up while the first ends (kernels/launch.cuh).
  int num_edges = 0;
  int num_programmatic_edges = 0;
};

// The graph of a step with `size` rows that each have one token and request its logits.
struct DecodeGraph {
  int size;
  StepGraph step;
};

// Captures a step of this size. Its kernels must have run before, since loading one may wait for
// the device. Launches nothing.
absl::StatusOr<StepGraph> CaptureStep(CudaModel& model, const CudaStepInput& input);

// Runs a step of `rows` padding rows of one token each and waits for it. This loads kernels, which
// happens at their first launch and must delay neither a capture nor a client. The kernels are
// those for rows of up to `max_row_tokens`. A rank plays the others itself, so that it waits for
// none.
absl::Status RunPaddingStep(CudaModel& model, int rows, int max_row_tokens);

// Runs such a step together with all ranks, each of which calls this on a thread of the group.
absl::Status RunJointStep(CudaModel& model, int rows, RankGroup& group);

// Returns the numbers of rows that decode steps are padded to: 1, 2, 4, 8, 16, 24, ..., `most`.
std::vector<int32_t> DecodeSizes(int32_t most);

class DecodeGraphs {
 public:
  // Captures graphs for DecodeSizes(max_num_seqs). A size whose capture fails is
  // left out, with a warning. Returns an error only if the device fails.
  absl::Status Capture(CudaModel& model);

  // Leaves out the sizes that one of the ranks has no graph of, since all ranks run the same graph.
  static void KeepCommonSizes(absl::Span<DecodeGraphs* const> ranks);

  // Returns the numbers of rows that there are graphs for, and leaves out all but some of them.
  std::vector<int32_t> Sizes() const;
  void KeepSizes(absl::Span<const int32_t> sizes);

  // Returns the smallest graph for at least `rows` rows, or nullptr if the step must run eagerly.
  const DecodeGraph* Find(int rows) const;

  int count() const { return static_cast<int>(graphs_.size()); }
  int num_failed() const { return num_failed_; }

 private:
  int num_failed_ = 0;
  std::vector<DecodeGraph> graphs_;  // ascending
};

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_DECODE_GRAPHS_H_
