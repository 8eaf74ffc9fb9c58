// Launches skinny_kernel.cuh's kernel: chooses the instance, makes tensor maps, sizes memory. For
// skinny_linear.cu and its test, which puts delays into the kernel.
#ifndef MILLRACE_KERNELS_GEMM_SM90_DENSE_SKINNY_LAUNCH_CUH_
#define MILLRACE_KERNELS_GEMM_SM90_DENSE_SKINNY_LAUNCH_CUH_

#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/arguments.h"
#include "kernels/gemm/sm90/dense/skinny_kernel.cuh"
#include "kernels/gemm/sm90/dense/skinny_linear.h"
#include "kernels/launch.cuh"

namespace millrace::kernels::sm90 {

inline constexpr int kSharedBytes = 227 * 1024 - 2048;  // of a CTA, without barriers and alignment

struct SkinnyInstance {
  void (*kernel)(SkinnyParams);
  int tokens, rows, chunks, threads, stage_bytes, exchange_bytes;
  int prologue_bytes;  // of a step's input, with a fused prologue; else 0
};

template <Type kType, int kTokens, bool kFused, bool kBlocks, typename Delay>
SkinnyInstance MakeInstance() {
  using Shape = SkinnyShape<kType, kTokens, kFused, kBlocks>;
  return {.kernel = SkinnyKernel<Shape, Delay>,
          .tokens = kTokens,
          .rows = Shape::kRows,
          .chunks = Shape::kChunks,
          .threads = Shape::kThreads,
          .stage_bytes = Shape::kStageBytes + Shape::kScaleBytes,
          .exchange_bytes = Shape::kExchangeBytes,
          .prologue_bytes = kFused ? Shape::kInputBytes : 0};
}

template <Type kType, typename Delay>
SkinnyInstance InstanceFor(int64_t tokens, bool fused) {
  if (fused) return MakeInstance<kType, 8, true, false, Delay>();
  return tokens <= 8 ? MakeInstance<kType, 8, false, false, Delay>()
                     : MakeInstance<kType, 16, false, false, Delay>();
}

template <typename Delay>
SkinnyInstance InstanceFor(const SkinnyLinearArgs& args) {
  const bool fused = args.input_row != nullptr;
  if (args.weight.type == Type::kBf16) return InstanceFor<Type::kBf16, Delay>(args.tokens, fused);
  if (args.weight.scaling != WeightScaling::kBlock) {
    return InstanceFor<Type::kFp8, Delay>(args.tokens, fused);
  }
  return args.tokens <= 8 ? MakeInstance<Type::kFp8, 8, false, true, Delay>()
                          : MakeInstance<Type::kFp8, 16, false, true, Delay>();
}

// Describes a matrix [rows][bytes] as boxes of `box_rows` x `chunks` * kChunk bytes, which arrive
// chunk by chunk, swizzled. The L2 cache fetches what a box asks for and no more, where that is 512
// bytes of a row (28672x4096 FP8 at one token: 28.2 µs, 29 to 31 in pieces of 256).
inline bool MakeTensorMap(const void* data, int64_t rows, int64_t bytes, int box_rows, int chunks,
                          CUtensorMap* map) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault,
                                     &result);
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  }();
  const cuuint64_t sizes[3] = {kChunk, static_cast<cuuint64_t>(rows),
                               static_cast<cuuint64_t>(bytes / kChunk)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(bytes), kChunk};
  const cuuint32_t box[3] = {kChunk, static_cast<cuuint32_t>(box_rows),
                             static_cast<cuuint32_t>(chunks)};
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUtensorMapL2promotion fetched =
      chunks >= 4 ? CU_TENSOR_MAP_L2_PROMOTION_NONE : CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
  return encode != nullptr &&
         encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, const_cast<void*>(data), sizes, strides, box,
                steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, fetched,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

inline bool IsValid(const InputRow& row, const SkinnyLinearArgs& args) {
  const int64_t stride = args.input.stride;
  if (args.tokens != 1 || stride > kMaxPrologueWidth || args.output_type != Type::kBf16 ||
      row.width < 8 || row.width > stride || row.width % 8 != 0) {
    return false;
  }
  if ((row.norm == nullptr) == (row.plain == nullptr)) return false;
  if (row.norm == nullptr) return IsAligned16(row.plain);
  if (args.weight.scaling == WeightScaling::kBlock) return false;
  const bool adds = row.delta.data != nullptr;
  return IsAligned16(row.norm) && row.residual != nullptr && IsAligned16(row.residual) &&
         row.epsilon >= 0 &&
         (!adds || (kernels::IsValid(row.delta, row.width) && row.new_residual != nullptr &&
                    IsAligned16(row.new_residual) && row.new_residual != row.residual));
}

inline bool IsValidGate(const OwnLinear& args) {
  const Activation& gated = args.gated;
  return args.output == nullptr && args.output_type == Type::kBf16 && IsKnown(gated.scaling) &&
         kernels::IsValid(gated, args.weight.rows / 2) && gated.stride == args.weight.rows / 2 &&
         args.weight.scaling != WeightScaling::kBlock && args.input.scaling != Scaling::kToken;
}

// Checks everything but the config and the largest number of tokens.
inline bool IsValidProduct(const OwnLinear& args) {
  const Weight& weight = args.weight;
  const Activation& input = args.input;
  if (weight.data == nullptr || !IsAligned16(weight.data) || weight.rows < 16 ||
      weight.rows % 16 != 0 || weight.stride < kColumnPadding ||
      weight.stride % kColumnPadding != 0 || weight.type != input.type ||
      !kernels::IsValid(input, weight.stride) || input.stride != weight.stride) {
    return false;
  }
  if (args.tokens < 1 || args.tile_counter == nullptr || args.output_type == Type::kFp8)
    return false;
  if (args.gated.data != nullptr
          ? !IsValidGate(args)
          : args.output == nullptr || !IsAligned16(args.output) ||
                args.output_stride < weight.rows || args.output_stride % 8 != 0) {
    return false;
  }
  if (weight.type == Type::kBf16) return weight.scaling == WeightScaling::kNone;
  if (weight.type != Type::kFp8 || weight.scales == nullptr) return false;
  if (weight.scaling == WeightScaling::kBlock) {
    return input.scaling == Scaling::kTokenGroup && IsAligned16(weight.scales) &&
           IsAligned16(input.scales);
  }
  return (weight.scaling == WeightScaling::kTensor || weight.scaling == WeightScaling::kChannel) &&
         (input.scaling == Scaling::kTensor || input.scaling == Scaling::kToken);
}

inline BlockScales BlockScalesOf(const OwnLinear& args) {
  if (args.weight.scaling != WeightScaling::kBlock) return {};
  return {.weight = args.weight.scales,
          .input = args.input.scales,
          .weight_stride = BlockScaleStride(args.weight.stride),
          .padded_tokens = static_cast<int>(PaddedTokens(args.tokens)),
          .chunks = static_cast<int>(args.weight.stride / 128)};
}

inline bool IsValid(const SkinnyLinearArgs& args) {
  return args.config.stages >= 2 && args.config.ctas >= 1 && args.tokens <= kMaxSkinnyTokens &&
         IsValidProduct(args) && (args.input_row == nullptr || IsValid(*args.input_row, args));
}

template <typename Delay>
cudaError_t LaunchSkinny(const SkinnyLinearArgs& args, cudaStream_t stream) {
  if (!IsValid(args)) return cudaErrorInvalidValue;
  if (!KernelsAwait()) return cudaErrorNotSupported;
  const Weight& weight = args.weight;
  const bool fused = args.input_row != nullptr;
  const SkinnyInstance instance = InstanceFor<Delay>(args);
  const int64_t row_bytes = weight.stride * (weight.type == Type::kFp8 ? 1 : 2);
  const int64_t tiles = CeilDiv<int64_t>(weight.rows, instance.rows);
  const int steps = static_cast<int>(CeilDiv<int64_t>(row_bytes / kChunk, instance.chunks));
  const int fixed_bytes = instance.exchange_bytes + steps * instance.prologue_bytes;
  const int stages = std::min(
      {args.config.stages, kMaxStages, (kSharedBytes - fixed_bytes) / instance.stage_bytes});
  SkinnyParams params = {
      .weight = {},
      .input = {},
      .prologue = fused ? *args.input_row : InputRow{},
      .prologue_input = args.input,
      .output = args.output,
      .output_stride = args.output_stride,
      .gate = GateOutputOf(args),
      .weight_scale = weight.scaling == WeightScaling::kTensor ? weight.scales : nullptr,
      .input_scale = args.input.scaling == Scaling::kTensor ? args.input.scales : nullptr,
      .block_scales = BlockScalesOf(args),
      .tile_counter = args.tile_counter,
      .rows = static_cast<int>(weight.rows),
      .tokens = static_cast<int>(args.tokens),
      .tiles = static_cast<int>(tiles),
      .fixed = CeilDiv(stages, steps),
      .steps = steps,
      .stages = stages,
      .fp32 = args.output_type == Type::kF32};
  if (!MakeTensorMap(weight.data, weight.rows, row_bytes, instance.rows, instance.chunks,
                     &params.weight) ||
      !MakeTensorMap(args.input.data, args.tokens, row_bytes, instance.tokens, instance.chunks,
                     &params.input)) {
    return cudaErrorInvalidValue;
  }
  const int shared_bytes = stages * instance.stage_bytes + fixed_bytes;
  // The attribute has one value, since another thread may launch the kernel with other stages.
  const cudaError_t error = cudaFuncSetAttribute(
      instance.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  const auto ctas = static_cast<unsigned>(std::min<int64_t>(tiles, args.config.ctas));
  return LaunchDependent(instance.kernel, dim3(ctas), dim3(instance.threads), shared_bytes, stream,
                         params);
}

}  // namespace millrace::kernels::sm90

#endif  // MILLRACE_KERNELS_GEMM_SM90_DENSE_SKINNY_LAUNCH_CUH_
