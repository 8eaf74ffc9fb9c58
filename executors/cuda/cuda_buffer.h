// What the files of CudaOps share: its buffers, and how it launches.
#ifndef MILLRACE_EXECUTORS_CUDA_CUDA_BUFFER_H_
#define MILLRACE_EXECUTORS_CUDA_CUDA_BUFFER_H_

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "executors/activation_arena.h"
#include "executors/cuda/cuda_ops.h"
#include "executors/cuda/device.h"
#include "kernels/attention/rope.h"
#include "kernels/types.h"

namespace millrace::cuda {

// What an op leaves: the residual (float32), a linear's input, its product, or q. Which of them is
// known to the ops that pass it on.
class CudaOps::Buffer : public ActivationBuffer {
 public:
  Buffer(ActivationArena& arena, size_t bytes, int tokens)
      : arena_(arena), data_(arena.Take(std::max<size_t>(bytes, 1))), tokens_(tokens) {}
  ~Buffer() override { arena_.Return(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  static const Buffer& Of(const Activation& activation) {
    return static_cast<const Buffer&>(*activation);
  }

  uint8_t* data() const { return data_; }
  int tokens() const { return tokens_; }
  float* residual() const { return reinterpret_cast<float*>(data_); }
  kernels::Bf16* bf16() const { return reinterpret_cast<kernels::Bf16*>(data_); }

  kernels::Activation input{};  // of a linear
  kernels::Product product{};
  int width = 0;                      // of a residual
  const float* bias = nullptr;        // of a product: to be added
  std::optional<kernels::Rope> rope;  // of a product that attention turns and appends itself

  std::vector<std::unique_ptr<Buffer>> pieces;  // of what the head runs on, one run each

  // Of a linear that makes its input: of what, and whose memory that is.
  std::optional<kernels::InputRow> row;
  std::unique_ptr<ActivationBuffer> row_memory[3];

 private:
  ActivationArena& arena_;
  uint8_t* data_;
  int tokens_;
};

template <typename Launch>
void CudaOps::Run(std::string_view op, std::initializer_list<int64_t> bytes, const Launch& launch) {
  if (measures_) {
    bytes_.insert(bytes_.end(), bytes);
  } else if (status_.ok()) {
    status_ = ToStatus(launch(), op);
  }
}

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_CUDA_BUFFER_H_
