// Samples from logits that are LibTorch's.
#ifndef MILLRACE_EXECUTORS_TORCH_TORCH_SAMPLER_H_
#define MILLRACE_EXECUTORS_TORCH_TORCH_SAMPLER_H_

#include <ATen/ATen.h>

#include <vector>

#include "absl/types/span.h"
#include "executors/host/sampler.h"
#include "executors/host/thread_pool.h"

namespace millrace::aten {

// Used by one thread.
class TorchSampler {
 public:
  // `pool` must outlive it.
  explicit TorchSampler(ThreadPool& pool) : pool_(pool), samplers_(pool.num_threads()) {}

  // Begins a step of so many requests.
  void Begin(size_t requests) {
    if (sampled_.size() < requests) sampled_.resize(requests);
  }

  // Samples from logits [rows, vocab], float32 and contiguous. Row i is for requests[which[i]];
  // rows beyond `which` are ignored. Overwrites the logits.
  void Sample(const at::Tensor& logits, const std::vector<SampleRequest>& requests,
              const std::vector<size_t>& which) {
    float* const values = logits.mutable_data_ptr<float>();
    const auto vocab = static_cast<size_t>(logits.size(1));
    pool_.ParallelFor(static_cast<int>(which.size()), [&](int i, int thread) {
      samplers_[thread].Sample(BestSamplingKernels(), {values + i * vocab, vocab},
                               requests[which[i]], &sampled_[which[i]]);
    });
  }

  // Returns the step's tokens, in the order of its requests, and perhaps older ones after them.
  absl::Span<const Sampled> sampled() const { return sampled_; }

 private:
  ThreadPool& pool_;
  std::vector<Sampler> samplers_;  // of threads
  std::vector<Sampled> sampled_;
};

}  // namespace millrace::aten

#endif  // MILLRACE_EXECUTORS_TORCH_TORCH_SAMPLER_H_
