// Captured steps that compute parts of prompts: one CUDA graph per size that steps are padded to.
#ifndef MILLRACE_EXECUTORS_CUDA_MIXED_GRAPHS_H_
#define MILLRACE_EXECUTORS_CUDA_MIXED_GRAPHS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "executors/cuda/decode_graphs.h"
#include "executors/cuda/step_buffers.h"
#include "plan/step_plan.h"

namespace millrace::cuda {

// No step with more tokens is padded: with eight billion parameters on an H200 its kernels take
// longer than launching them does, also on a core that another process keeps busy.
inline constexpr int kMaxGraphTokens = 1024;

// Returns the size that a step of `size` is padded to for a graph, or nullopt for a step that runs
// as it is: one of more than `max_tokens` or kMaxGraphTokens tokens, without tokens, or with more
// logits than there are sequences.
//
// Tokens are padded to the next bound of the linears' plans (kTokenBounds), so that a padded step
// runs the kernels of its own size; logits to 0, 1, 2, 4, 8 and so on. The number of rows, and that
// of tokens of a row, are upper bounds, which the plan of attention allows.
std::optional<CudaStepInput> PaddedSize(const CudaStepInput& size, const StepLimits& limits,
                                        int max_tokens);

// The graphs of one rank, captured while the server runs. Ranks that run the same steps ask for the
// same captures. Sizes are of PaddedSize.
class MixedGraphs {
 public:
  // Bounds the memory of graphs, about 0.3 MB each with 32 layers. All sizes there are with 256
  // sequences fit, so that no load captures a size again and again.
  static constexpr size_t kMostGraphs = 256;

  // Counts a step. Returns whether its size is to be captured before the step is launched. That is
  // at the second step: the first one runs without a graph and loads the kernels. Makes room for
  // the graph then: if there are kMostGraphs, destroys the one unused for longest, whose last step
  // must have ended.
  bool Count(const CudaStepInput& size);

  // Adds the graph of a size that Count named.
  void Add(const CudaStepInput& size, StepGraph graph);

  // Leaves the size without a graph for good, since its capture has failed on this rank or another.
  void GiveUp(const CudaStepInput& size);
  bool GivenUp(const CudaStepInput& size) const;

  // Returns the graph of the size, or nullptr.
  const StepGraph* Find(const CudaStepInput& size) const;

  size_t count() const { return count_; }

 private:
  struct Entry {
    int tokens;
    int wanted;
    int steps = 0;
    uint64_t last_step = 0;
    bool given_up = false;
    std::optional<StepGraph> graph = std::nullopt;
  };
  Entry& EntryOf(const CudaStepInput& size);
  const Entry* FindEntry(const CudaStepInput& size) const;
  void DestroyOldest();

  std::vector<Entry> entries_;
  uint64_t steps_ = 0;
  size_t count_ = 0;
};

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_MIXED_GRAPHS_H_
