// Utilities for tests of kernels that read a Product or write an Activation.
#ifndef MILLRACE_KERNELS_ACTIVATION_TEST_UTIL_H_
#define MILLRACE_KERNELS_ACTIVATION_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/fp8.cuh"
#include "kernels/test_util.h"
#include "kernels/types.h"

namespace millrace::kernels {

inline int64_t Padded(int64_t width) {
  return (width + kColumnPadding - 1) / kColumnPadding * kColumnPadding;
}

// A random Product on the device, and the values that it represents.
struct TestProduct {
  TestProduct(int tokens, int width, bool scaled, uint32_t seed)
      : stride(width + 8),  // rows need not be dense
        data(ToBf16(RandomNormal(tokens * stride, seed))),
        token_scales(Scales(tokens, seed + 1)),
        channel_scales(Scales(width, seed + 2)),
        view{data.get(), stride, scaled ? token_scales.get() : nullptr,
             scaled ? channel_scales.get() : nullptr} {
    const std::vector<Bf16> elements = data.Download();
    const std::vector<float> by_token = token_scales.Download();
    const std::vector<float> by_channel = channel_scales.Download();
    values.resize(static_cast<size_t>(tokens) * width);
    for (int t = 0; t < tokens; ++t) {
      for (int c = 0; c < width; ++c) {
        const double value = static_cast<float>(elements[t * stride + c]);
        values[t * width + c] = scaled ? value * by_token[t] * by_channel[c] : value;
      }
    }
  }

  static std::vector<float> Scales(int size, uint32_t seed) {
    std::vector<float> scales = RandomNormal(size, seed);
    for (float& scale : scales) scale = 0.5f + std::abs(scale);
    return scales;
  }

  int64_t stride;
  DeviceBuffer<Bf16> data;
  DeviceBuffer<float> token_scales, channel_scales;
  Product view;
  std::vector<double> values;  // [tokens, width]
};

// Poisoned memory for an Activation of `tokens` rows. kTensor's scale is set.
struct TestActivation {
  static constexpr float kTensorScale = 0.0123f;

  TestActivation(int tokens, int width, Scaling scaling)
      : tokens(tokens),
        width(width),
        stride(Padded(width)),
        element(scaling == Scaling::kNone ? 2 : 1),
        data(tokens * stride * element),
        scales(scaling == Scaling::kNone     ? 0
               : scaling == Scaling::kTensor ? 1
               : scaling == Scaling::kToken  ? tokens
                                             : stride / kColumnPadding * PaddedTokens(tokens)),
        view{data.get(), scaling == Scaling::kNone ? Type::kBf16 : Type::kFp8, scaling, stride,
             scaling == Scaling::kNone ? nullptr : scales.get()} {
    if (scaling == Scaling::kTensor) scales.Upload({kTensorScale});
  }

  // Returns the bytes of row `token` followed by its scales: equal exactly if the rows are.
  std::vector<uint8_t> RowBytes(int token) const {
    const std::vector<uint8_t> all = data.Download();
    const std::vector<float> all_scales = scales.Download();
    const size_t row = stride * element;
    std::vector<uint8_t> bytes(all.begin() + token * row, all.begin() + (token + 1) * row);
    const auto append = [&](float scale) {
      const uint8_t* raw = reinterpret_cast<const uint8_t*>(&scale);
      bytes.insert(bytes.end(), raw, raw + sizeof(scale));
    };
    if (view.scaling == Scaling::kToken) append(all_scales[token]);
    if (view.scaling == Scaling::kTokenGroup) {
      for (int64_t group = 0; group < stride / kColumnPadding; ++group) {
        append(all_scales[group * PaddedTokens(tokens) + token]);
      }
    }
    return bytes;
  }

  int tokens, width;
  int64_t stride;
  int element;  // bytes
  DeviceBuffer<uint8_t> data;
  DeviceBuffer<float> scales;
  Activation view;
};

// E4M3 codes in the order of their values, so that neighbours differ by one.
inline int Fp8Rank(uint8_t code) { return code & 0x80 ? -(code & 0x7f) : code & 0x7f; }

// Returns whether `code` is the rounding of `value`, which is accurate to about 2e-5 of itself and
// 1e-6 of `amax`. Next to a tie either neighbour is accepted.
inline bool IsFp8Of(double value, double amax, uint8_t code) {
  const double slack = 2e-5 * std::abs(value) + 1e-6 * amax;
  const int rank = Fp8Rank(code);
  return Fp8Rank(ToFp8(static_cast<float>(value - slack))) <= rank &&
         rank <= Fp8Rank(ToFp8(static_cast<float>(value + slack)));
}

// Checks a row of FP8 codes with these scales against the equally rounded reference.
inline void ExpectFp8Row(const uint8_t* codes, const std::vector<float>& scales,
                         const double* reference, int width, bool scales_known) {
  const int64_t group = scales.size() == 1 ? width : kColumnPadding;
  int off_by_one = 0;
  for (int64_t first = 0; first < width; first += group) {
    const int64_t end = std::min<int64_t>(first + group, width);
    const float scale = scales[first / group];
    const float inverse = Fp8Inverse(scale);
    double amax = 0;
    for (int64_t c = first; c < end; ++c) amax = std::max(amax, std::abs(reference[c]));
    if (!scales_known) {
      const double expected = std::max(amax, 1e-12) / 448;
      ASSERT_NEAR(scale, expected, 2e-5 * expected) << "columns from " << first;
    }
    for (int64_t c = first; c < end; ++c) {
      ASSERT_TRUE(IsFp8Of(reference[c] / scale, amax / scale, codes[c]))
          << "column " << c << ": " << reference[c] << " / " << scale << " became "
          << FromFp8(codes[c]);
      off_by_one += Fp8Code(static_cast<float>(reference[c]), inverse) != codes[c];
    }
  }
  EXPECT_LE(off_by_one, 2 + width / 100);
}

// Checks a row of BF16 (or __half) against the equally rounded reference; next to a tie either
// neighbour is accepted. That is stricter than kBf16RowError, which rounding alone may exceed in a
// short row.
template <typename T>
void ExpectRow(const T* row, const double* reference, int width) {
  const auto round = [](double value) {
    return static_cast<float>(static_cast<T>(static_cast<float>(value)));
  };
  double amax = 0;
  for (int c = 0; c < width; ++c) amax = std::max(amax, std::abs(reference[c]));
  int off_by_one = 0;
  for (int c = 0; c < width; ++c) {
    const double slack = 2e-5 * std::abs(reference[c]) + 1e-6 * amax;
    const float value = static_cast<float>(row[c]);
    ASSERT_TRUE(round(reference[c] - slack) <= value && value <= round(reference[c] + slack))
        << "column " << c << ": " << reference[c] << " became " << value;
    // Numbers far below the row's largest carry its float32 error in their last bits.
    off_by_one += value != round(reference[c]) && std::abs(reference[c]) > 1e-2 * amax;
  }
  EXPECT_LE(off_by_one, 2 + width / 100);
}

// Checks every row of `activation` against the reference [tokens, width]: errors, padding, guard
// bands.
inline void ExpectActivation(const TestActivation& activation,
                             const std::vector<double>& reference) {
  const int width = activation.width;
  const int64_t stride = activation.stride;
  const std::vector<uint8_t> data = activation.data.Download();
  const std::vector<float> scales = activation.scales.Download();
  for (int t = 0; t < activation.tokens; ++t) {
    SCOPED_TRACE("row " + std::to_string(t));
    const double* expected = reference.data() + static_cast<size_t>(t) * width;
    const uint8_t* row = data.data() + t * stride * activation.element;
    for (int64_t byte = width * activation.element; byte < stride * activation.element; ++byte) {
      ASSERT_EQ(row[byte], 0) << "padding byte " << byte;
    }
    if (activation.view.scaling == Scaling::kNone) {
      ExpectRow(reinterpret_cast<const Bf16*>(row), expected, width);
      if (::testing::Test::HasFatalFailure()) return;
      continue;
    }
    std::vector<float> own;  // one scale for the row, or one per 128 columns
    if (activation.view.scaling == Scaling::kTensor) own = {scales[0]};
    if (activation.view.scaling == Scaling::kToken) own = {scales[t]};
    if (activation.view.scaling == Scaling::kTokenGroup) {
      for (int64_t group = 0; group < stride / kColumnPadding; ++group) {
        own.push_back(scales[group * PaddedTokens(activation.tokens) + t]);
      }
    }
    ExpectFp8Row(row, own, expected, width, activation.view.scaling == Scaling::kTensor);
    if (::testing::Test::HasFatalFailure()) return;
  }
  EXPECT_TRUE(activation.data.GuardsIntact());
  EXPECT_TRUE(activation.scales.GuardsIntact());
}

inline const char* ScalingName(Scaling scaling) {
  switch (scaling) {
    case Scaling::kNone:
      return "bf16";
    case Scaling::kTensor:
      return "tensor";
    case Scaling::kToken:
      return "token";
    case Scaling::kTokenGroup:
      return "group";
  }
  return "";
}

// Upper limit on the elements that a test checks one by one, to bound its time.
inline constexpr int kMaxElements = 1 << 18;

inline constexpr Scaling kAllScalings[] = {Scaling::kNone, Scaling::kTensor, Scaling::kToken,
                                           Scaling::kTokenGroup};

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_ACTIVATION_TEST_UTIL_H_
