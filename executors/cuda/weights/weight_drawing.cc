// Dummy weights, drawn on the device (weight_loader.h).
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "executors/cuda/device/device.h"
#include "executors/cuda/weights/four_bit_rows.h"
#include "executors/cuda/weights/weight_loader.h"
#include "kernels/weights/fill.h"
#include "kernels/weights/quantize_weights.h"

namespace millrace::cuda {
namespace {

// Draws a matrix's rows one by one, each with its factor.
absl::Status DrawRows(const PendingMatrix& matrix, const kernels::FillArgs& whole) {
  const size_t row_bytes = matrix.stride * ElementBytes(matrix.type);
  for (int64_t row = 0; row < matrix.rows; ++row) {
    kernels::FillArgs fill = whole;
    fill.out = static_cast<uint8_t*>(whole.out) + row * row_bytes;
    fill.rows = 1;
    fill.seed = whole.seed << 32 | static_cast<uint64_t>(row);
    fill.low *= matrix.row_factors[row];
    fill.high *= matrix.row_factors[row];
    MILLRACE_RETURN_IF_ERROR(ToStatus(kernels::LaunchFill(fill, nullptr), "dummy weights"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status DrawWeights(const std::vector<PendingMatrix>& matrices, uint8_t* arena) {
  DeviceMemory bf16;
  DeviceMemory four_bit;
  uint64_t seed = 0;
  for (const PendingMatrix& matrix : matrices) {
    if (!matrix.present) continue;
    if (matrix.four_bit.has_value()) {
      const int64_t rows = RoundUp(matrix.rows, kRowMultiple);
      const size_t bytes = FourBitStagingBytes(rows, matrix.stride);
      if (four_bit.bytes() < bytes) {
        MILLRACE_ASSIGN_OR_RETURN(four_bit, DeviceMemory::Allocate(bytes, "dummy weights"));
      }
      MILLRACE_RETURN_IF_ERROR(ToStatus(
          TileDrawn({&matrix, 0, rows, arena}, ++seed, four_bit.data(), nullptr), "dummy weights"));
      continue;
    }
    kernels::FillArgs fill{.out = arena + matrix.data_offset,
                           .type = matrix.type,
                           .rows = matrix.rows,
                           .columns = matrix.columns,
                           .stride = matrix.stride,
                           .seed = ++seed};
    if (matrix.stored_fp8) {
      fill.low = -448;
      fill.high = 448;
    }
    if (!matrix.row_factors.empty()) {
      MILLRACE_RETURN_IF_ERROR(DrawRows(matrix, fill));
      continue;
    }
    const bool quantized = matrix.type == kernels::Type::kFp8 && !matrix.stored_fp8;
    if (quantized) {
      const size_t bytes = 2 * matrix.rows * matrix.stride;
      if (bf16.bytes() < bytes) {
        MILLRACE_ASSIGN_OR_RETURN(bf16, DeviceMemory::Allocate(bytes, "dummy weights"));
      }
      fill.out = bf16.data();
      fill.type = kernels::Type::kBf16;
    }
    MILLRACE_RETURN_IF_ERROR(ToStatus(kernels::LaunchFill(fill, nullptr), "dummy weights"));
    if (!quantized) continue;
    MILLRACE_RETURN_IF_ERROR(
        ToStatus(kernels::LaunchQuantizeWeights(
                     {.source = bf16.As<kernels::Bf16>(),
                      .rows = matrix.rows,
                      .stride = matrix.stride,
                      .out = arena + matrix.data_offset,
                      .scaling = matrix.scaling,
                      .scales = reinterpret_cast<float*>(arena + matrix.scales_offset)},
                     nullptr),
                 "dummy weights"));
  }
  // The staging memory goes: whoever uses it must be done.
  return ToStatus(cudaDeviceSynchronize(), "dummy weights");
}

}  // namespace millrace::cuda
