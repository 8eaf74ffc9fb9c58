// A random four-bit weight in plain rows, and its values by their definition; for .cu files.
#ifndef MILLRACE_KERNELS_GEMM_FOUR_BIT_TEST_UTIL_H_
#define MILLRACE_KERNELS_GEMM_FOUR_BIT_TEST_UTIL_H_

#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/gemm/four_bit.h"
#include "kernels/test_util.h"

namespace millrace::kernels {

class FourBitSource {
 public:
  // `columns` is a multiple of the group.
  FourBitSource(const FourBitFormat& format, int64_t rows, int64_t columns, uint32_t seed)
      : format_(format),
        columns_(columns),
        groups_(columns / format.group),
        codes_(rows * columns / 2),
        scales_(rows * groups_ * (format.type == FourBitType::kMxfp4 ? 1 : 2)),
        zeros_(rows * groups_),
        minima_(rows * groups_) {
    std::mt19937 random(seed);
    for (uint8_t& code : codes_) code = static_cast<uint8_t>(random());
    for (uint8_t& zero : zeros_) {  // GPTQ has 16, too
      zero = format.symmetric ? 8 : static_cast<uint8_t>(random() % 17);
    }
    for (Bf16& minimum : minima_) {  // sums with the products are exact in fp32
      minimum = __float2bfloat16(-0.05f - 0.3f * static_cast<float>(random() % 1000) / 1000);
    }
    for (int64_t i = 0; i < rows * groups_; ++i) {
      if (format.type == FourBitType::kMxfp4) {
        scales_[i] = static_cast<uint8_t>(118 + random() % 6);
        continue;
      }
      const float scale = 0.01f + 0.02f * static_cast<float>(random() % 1000) / 1000;
      const uint16_t bits = HasHalves() ? __half_as_ushort(__float2half(scale))
                                        : __bfloat16_as_ushort(__float2bfloat16(scale));
      scales_[2 * i] = static_cast<uint8_t>(bits);
      scales_[2 * i + 1] = static_cast<uint8_t>(bits >> 8);
    }
    Upload();
  }
  // With these scales, as they are stored; zero points are 8, and minima 0.
  FourBitSource(const FourBitFormat& format, int64_t rows, int64_t columns, uint32_t seed,
                const std::vector<uint8_t>& scales)
      : FourBitSource(format, rows, columns, seed) {
    scales_ = scales;
    zeros_.assign(zeros_.size(), 8);
    minima_.assign(minima_.size(), __float2bfloat16(0));
    has_zeros_ = false;
    Upload();
  }

  // Writes the blocks of `rows` rows on the device.
  cudaError_t Tile(int64_t rows, int64_t stride, const int32_t* source_rows, void* out) const {
    const bool zeros = has_zeros_ && format_.type == FourBitType::kInt4 && !format_.symmetric;
    return LaunchTileFourBit({.format = format_,
                              .rows = rows,
                              .columns = columns_,
                              .stride = stride,
                              .codes = device_codes_[0].get(),
                              .scales = device_scales_[0].get(),
                              .zeros = zeros ? device_zeros_[0].get() : nullptr,
                              .source_rows = source_rows,
                              .out = out,
                              .minima = IsAffine() ? device_minima_[0].get() : nullptr},
                             nullptr);
  }

  // The definition's value. Before it is rounded to BF16 it is exact in fp32.
  float Value(int64_t row, int64_t column) const {
    const uint8_t code = codes_[row * columns_ / 2 + column / 2] >> (column % 2 * 4) & 15;
    const int64_t at = row * groups_ + column / format_.group;
    if (format_.type == FourBitType::kMxfp4) {
      constexpr float kMagnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
      const float value = code & 8 ? -kMagnitudes[code & 7] : kMagnitudes[code & 7];
      const double product = std::ldexp(static_cast<double>(value), scales_[at] - 127);
      return static_cast<float>(__float2bfloat16(static_cast<float>(product)));
    }
    const auto bits = static_cast<uint16_t>(scales_[2 * at] | scales_[2 * at + 1] << 8);
    const float scale = HasHalves() ? __half2float(__ushort_as_half(bits))
                                    : __bfloat162float(__ushort_as_bfloat16(bits));
    if (IsAffine()) {
      const float minimum = __bfloat162float(minima_[at]);
      return static_cast<float>(__float2bfloat16(scale * code + minimum));
    }
    return static_cast<float>(__float2bfloat16(scale * (code - zeros_[at])));
  }

 private:
  void Upload() {
    device_codes_.clear(), device_scales_.clear(), device_zeros_.clear(), device_minima_.clear();
    device_codes_.emplace_back(codes_);
    device_scales_.emplace_back(scales_);
    device_zeros_.emplace_back(zeros_);
    device_minima_.emplace_back(minima_);
  }
  bool IsAffine() const { return format_.type == FourBitType::kInt4Affine; }
  bool HasHalves() const {
    return format_.type == FourBitType::kInt4 && format_.scale == FourBitScale::kF16;
  }

  FourBitFormat format_;
  int64_t columns_, groups_;
  std::vector<uint8_t> codes_, scales_, zeros_;
  std::vector<Bf16> minima_;
  bool has_zeros_ = true;
  std::vector<DeviceBuffer<uint8_t>> device_codes_, device_scales_, device_zeros_;  // one each
  std::vector<DeviceBuffer<Bf16>> device_minima_;
};

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_GEMM_FOUR_BIT_TEST_UTIL_H_
