// The decode step, captured: one CUDA graph for each batch size.
#ifndef MILLRACE_EXECUTORS_CUDA_DECODE_GRAPHS_H_
#define MILLRACE_EXECUTORS_CUDA_DECODE_GRAPHS_H_

#include <vector>

#include "absl/status/status.h"
#include "executors/cuda/cuda_model.h"

namespace millrace::cuda {

// The forward pass and the sampler of a step of `size` rows that have one token each and want its
// logits. What differs between two such steps lies in memory that the graph reads.
struct DecodeGraph {
  int size;
  GraphExec graph;
  // Between its operations; of the programmatic ones the second is set up while the first ends
  // (kernels/launch.cuh): those between two kernels of ours.
  int num_edges = 0;
  int num_programmatic_edges = 0;
};

// Runs a step of `rows` rows of one token each, all of them nobody's, and waits for it: kernels are
// loaded at their first launch, which neither a capture nor a client should wait for. Its kernels
// are those of rows of up to `max_row_tokens`.
absl::Status RunNobodysStep(CudaModel& model, int rows, int max_row_tokens);

class DecodeGraphs {
 public:
  // Captures a graph for 1, 2, 4, 8, 16, 24 … max_num_seqs rows. A size that cannot be captured
  // is left out, with a warning; an error is the device's.
  absl::Status Capture(CudaModel& model);

  // The smallest that holds `rows`; nullptr: run the step eagerly.
  const DecodeGraph* Find(int rows) const;

  int count() const { return static_cast<int>(graphs_.size()); }
  int num_failed() const { return num_failed_; }

 private:
  int num_failed_ = 0;
  std::vector<DecodeGraph> graphs_;  // ascending
};

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_DECODE_GRAPHS_H_
