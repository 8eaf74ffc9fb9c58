// Samples from logits that are LibTorch's.
#ifndef MILLRACE_EXECUTORS_TORCH_TORCH_SAMPLER_H_
#define MILLRACE_EXECUTORS_TORCH_TORCH_SAMPLER_H_

#include <ATen/ATen.h>

#include <vector>

#include "absl/types/span.h"
#include "executors/cpu/kernels.h"
#include "executors/cpu/sampler.h"
#include "executors/cpu/thread_pool.h"

namespace millrace::aten {

// Of one thread.
class TorchSampler {
 public:
  // `pool` must outlive it.
  explicit TorchSampler(cpu::ThreadPool& pool) : pool_(pool), samplers_(pool.num_threads()) {}

  // Begins a step of so many requests.
  void Begin(size_t requests) {
    if (sampled_.size() < requests) sampled_.resize(requests);
  }

  // Row i of `logits`, [rows, vocab], float32 and contiguous, is for requests[which[i]]; rows
  // beyond `which` are for none. Overwrites the logits.
  void Sample(const at::Tensor& logits, const std::vector<cpu::SampleRequest>& requests,
              const std::vector<size_t>& which) {
    float* const values = logits.mutable_data_ptr<float>();
    const auto vocab = static_cast<size_t>(logits.size(1));
    pool_.ParallelFor(static_cast<int>(which.size()), [&](int i, int thread) {
      samplers_[thread].Sample(cpu::BestKernels(), {values + i * vocab, vocab}, requests[which[i]],
                               &sampled_[which[i]]);
    });
  }

  // Of the step, in the order of its requests, and perhaps older ones after them.
  absl::Span<const Sampled> sampled() const { return sampled_; }

 private:
  cpu::ThreadPool& pool_;
  std::vector<cpu::Sampler> samplers_;  // of threads
  std::vector<Sampled> sampled_;
};

}  // namespace millrace::aten

#endif  // MILLRACE_EXECUTORS_TORCH_TORCH_SAMPLER_H_
