// The op of CudaOps that multiplies by a four-bit weight in a long step (expansion.h).
#include <algorithm>
#include <cstdint>
#include <variant>

#include "executors/cuda/cuda_buffer.h"
#include "executors/cuda/cuda_ops.h"
#include "executors/cuda/weights/expansion.h"
#include "kernels/gemm/four_bit.h"
#include "kernels/gemm/grouped_linear.h"

namespace millrace::cuda {

void CudaOps::MultiplyExpanded(const CudaLinear& linear, const CudaInputForm& in,
                               kernels::Bf16* out) {
  const auto& four_bit = std::get<FourBitLinear>(linear.runner);
  const kernels::GroupedWeight& weight = four_bit.weight;
  const CudaExpansion& expansion = four_bit.expansion;
  auto* const expanded = c_.weights->expansion.As<kernels::Bf16>();
  for (int64_t first = 0; first < weight.rows; first += expansion.piece_rows) {
    const int64_t rows = std::min(expansion.piece_rows, weight.rows - first);
    const int64_t bf16_bytes = rows * weight.stride * static_cast<int64_t>(sizeof(kernels::Bf16));
    Run("expand", {weight.four_bit->Bytes(rows, weight.stride) + bf16_bytes}, [&] {
      return kernels::LaunchDequantizeFourBit(
          {.format = *weight.four_bit,
           .tiles = static_cast<const uint8_t*>(weight.data) +
                    weight.four_bit->Bytes(first, weight.stride),
           .rows = rows,
           .stride = weight.stride,
           .out = expanded},
          stream_);
    });
    kernels::LinearArgs args = ArgsOf(linear, in);
    args.plan = rows == expansion.piece_rows ? expansion.plan : expansion.last_plan;
    args.weight.data = expanded;
    args.weight.rows = rows;
    args.output = out + first;
    Multiply(args, in.rows.tokens() * rows * static_cast<int64_t>(sizeof(kernels::Bf16)));
  }
}

}  // namespace millrace::cuda
