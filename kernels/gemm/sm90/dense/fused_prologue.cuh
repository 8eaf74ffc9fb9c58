// The fused prologue of a linear of one token: every CTA computes the whole input row from
// linear.h's InputRow, which saves a kernel and the wait for it at the cost of some kilobytes read
// by each CTA.
#ifndef MILLRACE_KERNELS_GEMM_SM90_DENSE_FUSED_PROLOGUE_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_DENSE_FUSED_PROLOGUE_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/activation_row.cuh"
#include "kernels/device_util.cuh"
#include "kernels/fp8.cuh"
#include "kernels/gemm/linear.h"
#include "kernels/norm/norm_rule.cuh"
#include "kernels/types.h"

namespace millrace::kernels::sm90 {

inline constexpr int kPrologueThreads = 128;
inline constexpr int kPrologueVectors =
    kMaxPrologueWidth / 8 / kPrologueThreads;  // vectors of 8 columns of each thread

// Runs on kPrologueThreads threads. The bits are those of norm/rms_norm.cu and
// elementwise/quantize.cu, whose threads have one vector each: thread t does here what threads t, t
// + 128 ... do there, and the reductions have the same trees.
template <Type kType>
class FusedPrologue {
 public:
  struct Shared {
    float squares[kPrologueVectors * kPrologueThreads / kWarpSize];  // of each warp there
    float maxima[kPrologueThreads / kWarpSize];
  };

  // Loads what is constant. Called before the wait for the predecessor.
  __device__ FusedPrologue(const InputRow& row, const Activation& input)
      : row_(row), input_(input), tensor_scale_(TensorScale(input)) {
    if (row.norm == nullptr) return;
#pragma unroll
    for (int i = 0; i < kPrologueVectors; ++i) {
      if (Column(i) >= row.width) continue;
      Load8(row.norm + Column(i), weight_[i]);
      delta_[i].LoadConstants(row.delta, Column(i));
    }
  }

  // Writes the row, and zeros up to `columns`, to shared memory: 128 bytes of K every `stride`
  // bytes, each the first of eight rows of a swizzled matrix. Ends with a barrier of the threads,
  // behind which wgmma may read it.
  __device__ void Make(uint8_t* to, int stride, int columns, Shared& shared) {
    float x[kPrologueVectors][8] = {};
    const float largest = row_.norm != nullptr ? Norm(x, shared) : Plain(x, shared);
    const auto place = [&](int byte) { return to + byte / 128 * stride + byte % 128; };
    if constexpr (kType == Type::kFp8) {
      const float inverse = Fp8Inverse(Scale(largest));
#pragma unroll
      for (int i = 0; i < kPrologueVectors; ++i) {
        if (Column(i) >= columns) continue;
        *reinterpret_cast<uint2*>(place(Column(i))) = Fp8Codes8(x[i], inverse);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kPrologueVectors; ++i) {
        if (Column(i) < columns) Store8(reinterpret_cast<Bf16*>(place(2 * Column(i))), x[i]);
      }
    }
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    Sync();
  }

 private:
  __device__ static int Column(int i) { return 8 * (threadIdx.x + i * kPrologueThreads); }
  __device__ static void Sync() {
    asm volatile("bar.sync 1, %0;" ::"n"(kPrologueThreads) : "memory");
  }

  // Both compute the row, and return its largest magnitude where the output is FP8.
  __device__ float Plain(float (&x)[kPrologueVectors][8], Shared& shared) const {
#pragma unroll
    for (int i = 0; i < kPrologueVectors; ++i) {
      if (Column(i) < row_.width) Load8(row_.plain + Column(i), x[i]);
    }
    if constexpr (kType != Type::kFp8) return 0;
    StoreLargest(x, shared);
    Sync();
    return Largest(shared);
  }

  __device__ float Norm(float (&x)[kPrologueVectors][8], Shared& shared) {
    const bool adds = row_.delta.data != nullptr;
#pragma unroll
    for (int i = 0; i < kPrologueVectors; ++i) {
      if (Column(i) >= row_.width) continue;
      Load8(row_.residual + Column(i), x[i]);
      if (adds) delta_[i].Load(row_.delta, 0, Column(i));
    }
    const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
#pragma unroll
    for (int i = 0; i < kPrologueVectors; ++i) {
      if (adds && Column(i) < row_.width) {
        float addend[8];
        delta_[i].Values(addend);
#pragma unroll
        for (int j = 0; j < 8; ++j) x[i][j] += addend[j];
        if (blockIdx.x == 0) Store8(row_.new_residual + Column(i), x[i]);
      }
      const float squares = WarpReduce<Add>(SumOfSquares(x[i]));
      if (lane == 0) shared.squares[i * (kPrologueThreads / kWarpSize) + warp] = squares;
      if (Column(i) < row_.width) MultiplyBy(weight_[i], x[i]);
    }
    if constexpr (kType == Type::kFp8) StoreLargest(x, shared);
    Sync();
    constexpr int kParts = sizeof(shared.squares) / sizeof(float);
    const float factor =
        NormFactor(SumOfParts(shared.squares, kParts), 1.0f / row_.width, row_.epsilon);
#pragma unroll
    for (int i = 0; i < kPrologueVectors; ++i) {
      if (Column(i) < row_.width) MultiplyBy(factor, x[i]);
    }
    return kType == Type::kFp8 ? Largest(shared) * factor : 0;
  }

  __device__ static void StoreLargest(const float (&x)[kPrologueVectors][8], Shared& shared) {
    const float own = WarpReduce<Max>(Amax(x));
    if (threadIdx.x % kWarpSize == 0) shared.maxima[threadIdx.x / kWarpSize] = own;
  }
  __device__ static float Largest(const Shared& shared) {
    float largest = 0;
    for (const float maximum : shared.maxima) largest = fmaxf(largest, maximum);
    return largest;
  }

  __device__ float Scale(float largest) const {
    if (input_.scaling == Scaling::kTensor) return tensor_scale_;
    const float scale = Fp8Scale(largest);
    if (blockIdx.x == 0 && threadIdx.x == 0) *input_.scales = scale;
    return scale;
  }

  const InputRow& row_;
  const Activation& input_;
  const float tensor_scale_;
  float weight_[kPrologueVectors][8];
  ProductVector<true> delta_[kPrologueVectors];
};

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_DENSE_FUSED_PROLOGUE_CUH_
