// Shared by the source files of CudaOps: its buffers and its launches.
#ifndef MILLRACE_EXECUTORS_CUDA_CUDA_BUFFER_H_
#define MILLRACE_EXECUTORS_CUDA_CUDA_BUFFER_H_

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "base/strings.h"
#include "executors/activation_arena.h"
#include "executors/cuda/cuda_ops.h"
#include "executors/cuda/device/device.h"
#include "kernels/attention/rope.h"
#include "kernels/gemm/linear.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/types.h"

namespace millrace::cuda {

// An allocation of the arena that holds one row per token.
class CudaRows {
 public:
  CudaRows() = default;
  // Owns the range of the arena that begins at `begin`. Without an arena the rows have no memory,
  // and are those of a step that launches nothing more.
  CudaRows(ActivationArena* arena, size_t begin, uint8_t* memory, int tokens)
      : arena_(arena), begin_(begin), data_(memory + begin_), tokens_(tokens) {}
  CudaRows(CudaRows&& other) noexcept { *this = std::move(other); }
  CudaRows& operator=(CudaRows&& other) noexcept {
    std::swap(arena_, other.arena_);
    std::swap(begin_, other.begin_);
    std::swap(data_, other.data_);
    std::swap(tokens_, other.tokens_);
    return *this;
  }
  ~CudaRows() {
    if (arena_ != nullptr) arena_->Return(begin_);
  }

  uint8_t* data() const { return data_; }
  int tokens() const { return tokens_; }
  float* floats() const { return reinterpret_cast<float*>(data_); }
  kernels::Bf16* bf16() const { return reinterpret_cast<kernels::Bf16*>(data_); }

 private:
  ActivationArena* arena_ = nullptr;
  size_t begin_ = 0;
  uint8_t* data_ = nullptr;
  int tokens_ = 0;
};

// A linear's output.
struct CudaProduct {
  CudaRows rows;
  kernels::Product values{};
};

struct CudaResidual : ResidualBuffer {
  CudaRows rows;  // float32
};

// A linear's input in the form that some of its consumers want.
struct CudaInputForm {
  CudaRows rows;
  kernels::Activation values{};
  // Set for a consumer with a fused prologue: the row that it computes its input from. `values`
  // then say where its scales go.
  std::optional<kernels::InputRow> row;
};

struct CudaLinearInput : LinearInputBuffer {
  absl::InlinedVector<CudaInputForm, 1> forms;

  // Set for a mixture's input of one token. The router's kernel computes this norm and writes the
  // only form.
  std::optional<kernels::RmsNormArgs> norm;

  // The owners of the memory that `norm` or the `row` of a form points into.
  CudaProduct product;
  LinearInput scales;  // the product's
  Residual residual;
  CudaRows plain;
};

struct CudaQkv : QkvBuffer {
  CudaProduct product;
  const float* bias = nullptr;  // still to be added
};

// Either q alone, or all of the product, which attention rotates and appends itself. The product is
// there, too, where it has the gates of attention's output.
struct CudaQuery : QueryBuffer {
  CudaRows q;
  CudaProduct product;
  const float* bias = nullptr;  // still to be added to gates
  std::optional<kernels::Rope> rope;
};

// The wanted rows of the head's input, in pieces that one run of the head takes.
struct CudaLogits : LogitsBuffer {
  using LogitsBuffer::LogitsBuffer;
  std::vector<CudaInputForm> pieces;
};

inline CudaResidual& Cast(const Residual& residual) {
  return static_cast<CudaResidual&>(*residual);
}

template <typename Launch>
void CudaOps::Run(std::string_view op, std::initializer_list<int64_t> bytes, const Launch& launch) {
  if (measures_) {
    bytes_.insert(bytes_.end(), bytes);
  } else if (ok()) {
    Fail(ToStatus(launch(), op));
  }
}

template <typename Launch>
void CudaOps::RunTogether(std::string_view op, std::initializer_list<int64_t> bytes,
                          const Launch& launch) {
  Meet();
  Run(op, bytes, launch);
  Meet();
}

template <typename Came, typename... Allowed>
void CudaOps::Require(bool supported, std::string_view field, const Came& came,
                      const Allowed&... allowed) {
  if (supported) return;
  Fail(absl::UnimplementedError(
      StrCat("the model's ", field, " is ", came, "; allowed on the GPU: ", allowed...)));
}

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_CUDA_BUFFER_H_
