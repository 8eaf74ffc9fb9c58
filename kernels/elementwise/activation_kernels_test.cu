// Tests of gated_activation, quantize, embed and gather_rows.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/activation_test_util.h"
#include "kernels/elementwise/embed.h"
#include "kernels/elementwise/gated_activation.h"
#include "kernels/elementwise/gather_rows.h"
#include "kernels/elementwise/quantize.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

std::string Name(int tokens, int width, Scaling scaling) {
  return std::to_string(tokens) + " x " + std::to_string(width) + " " + ScalingName(scaling);
}

std::vector<double> GatedReference(const std::vector<double>& gate_up, int tokens, int size) {
  std::vector<double> out(static_cast<size_t>(tokens) * size);
  for (int t = 0; t < tokens; ++t) {
    const double* row = gate_up.data() + static_cast<size_t>(t) * 2 * size;
    for (int c = 0; c < size; ++c) {
      out[static_cast<size_t>(t) * size + c] = row[c] / (1 + std::exp(-row[c])) * row[size + c];
    }
  }
  return out;
}

TEST(GatedActivation, MatchesDoubleAtAllSizesAndScalings) {
  for (const int size : {8, 576, 1536, 2056, 8200, 14336, 28672, 32768}) {
    for (const int tokens : {1, 3, 17, 48, 63, 65, 255, 2000}) {
      if (tokens * size > kMaxElements) continue;
      for (const Scaling scaling : kAllScalings) {
        SCOPED_TRACE(Name(tokens, size, scaling));
        const TestProduct gate_up(tokens, 2 * size, tokens != 1, 1);
        TestActivation out(tokens, size, scaling);
        for (const bool only_portable : {false, true}) {
          out.data.Poison();
          ASSERT_EQ(
              LaunchGatedActivation({gate_up.view, tokens, size, out.view, only_portable}, nullptr),
              cudaSuccess);
          ExpectActivation(out, GatedReference(gate_up.values, tokens, size));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(GatedActivation, RowsBitsDependOnTheRowAlone) {
  constexpr int kTokens = 65, kSize = 1536;
  for (const Scaling scaling : kAllScalings) {
    const TestProduct gate_up(kTokens, 2 * kSize, true, 1);
    const TestActivation out(kTokens, kSize, scaling);
    ASSERT_EQ(LaunchGatedActivation({gate_up.view, kTokens, kSize, out.view}, nullptr),
              cudaSuccess);
    for (const int token : {0, 31, 64}) {
      Product row = gate_up.view;
      row.data += token * row.stride;
      row.token_scales += token;
      const TestActivation alone(1, kSize, scaling);
      ASSERT_EQ(LaunchGatedActivation({row, 1, kSize, alone.view}, nullptr), cudaSuccess);
      EXPECT_EQ(alone.RowBytes(0), out.RowBytes(token)) << ScalingName(scaling);
    }
  }
}

// Extremes of the gate: silu reaches its limits on both sides, without overflow on the way.
TEST(GatedActivation, KeepsSiluAtItsLimits) {
  constexpr int kSize = 16;
  std::vector<float> row(2 * kSize, 1.0f);
  const float gates[kSize] = {0,   -0.0f, 1,   -1,   20,    -20,  80,    -80,
                              -87, -88,   -89, -100, -1e4f, 1e4f, 1e30f, -1e30f};
  std::copy(gates, gates + kSize, row.begin());
  const DeviceBuffer<Bf16> in(ToBf16(row));
  const TestActivation out(1, kSize, Scaling::kNone);
  ASSERT_EQ(
      LaunchGatedActivation({{in.get(), 2 * kSize, nullptr, nullptr}, 1, kSize, out.view}, nullptr),
      cudaSuccess);
  const std::vector<uint8_t> data = out.data.Download();
  for (int c = 0; c < kSize; ++c) {
    const double gate = static_cast<float>(__float2bfloat16(gates[c]));
    const double expected = gate / (1 + std::exp(-gate));
    EXPECT_NEAR(static_cast<float>(reinterpret_cast<const Bf16*>(data.data())[c]), expected,
                std::abs(expected) / 200 + 1e-30)
        << gates[c];
  }
}

// Few rows, many rows and clusters use different kernels, but each row has the same bits.
void ExpectTheSameBitsOfEveryKernel(const std::vector<int>& sizes, int most_tokens,
                                    const std::vector<int>& fewer_tokens) {
  for (const int size : sizes) {
    const TestProduct gate_up(most_tokens, 2 * size, size != 576, 1);
    const TestActivation all(most_tokens, size, Scaling::kToken);
    ASSERT_EQ(LaunchGatedActivation({gate_up.view, most_tokens, size, all.view}, nullptr),
              cudaSuccess);
    const std::vector<uint8_t> codes = all.data.Download();
    const std::vector<float> scales = all.scales.Download();
    EXPECT_TRUE(all.data.GuardsIntact());
    std::vector<int> numbers = fewer_tokens;
    numbers.push_back(most_tokens);
    for (const int tokens : numbers) {
      for (const bool only_portable : {false, true}) {
        SCOPED_TRACE(Name(tokens, size, Scaling::kToken) + (only_portable ? " portable" : ""));
        const TestActivation some(tokens, size, Scaling::kToken);
        ASSERT_EQ(
            LaunchGatedActivation({gate_up.view, tokens, size, some.view, only_portable}, nullptr),
            cudaSuccess);
        const std::vector<uint8_t> own = some.data.Download();
        EXPECT_TRUE(std::equal(own.begin(), own.end(), codes.begin()));
        const std::vector<float> own_scales = some.scales.Download();
        EXPECT_TRUE(std::equal(own_scales.begin(), own_scales.end(), scales.begin()));
        EXPECT_TRUE(some.data.GuardsIntact());
        EXPECT_TRUE(some.scales.GuardsIntact());
      }
    }
  }
}

TEST(GatedActivation, EveryKernelGivesTheSameBits) {
  ExpectTheSameBitsOfEveryKernel({8, 576, 2056, 8200, 14336, 28672}, 300, {1, 3, 64, 65});
}

// A group of threads has up to six rows, and more.
TEST(GatedActivation, ManyRowsHaveTheSameBits) {
  ExpectTheSameBitsOfEveryKernel({9000, 14336}, 1100, {400, 576, 780});
}

// Returns the same rows in the other layout.
TEST(GatedActivation, ReadsBothLayouts) {
  for (const int size : {576, 8200, 14336}) {
    for (const int tokens : {3, 60, 150}) {
      const TestProduct halves(tokens, 2 * size, true, 1);
      const std::vector<Bf16> data = halves.data.Download();
      const std::vector<float> scales = halves.channel_scales.Download();
      std::vector<Bf16> permuted = data;
      std::vector<float> permuted_scales = scales;
      for (int c = 0; c < 2 * size; ++c) {
        const int to = c % size / 8 * 16 + c / size * 8 + c % 8;
        permuted_scales[to] = scales[c];
        for (int t = 0; t < tokens; ++t) {
          permuted[t * halves.stride + to] = data[t * halves.stride + c];
        }
      }
      const DeviceBuffer<Bf16> in(permuted);
      const DeviceBuffer<float> channel_scales(permuted_scales);
      const Product interleaved = {in.get(), halves.stride, halves.view.token_scales,
                                   channel_scales.get()};
      for (const Scaling scaling : kAllScalings) {
        SCOPED_TRACE(Name(tokens, size, scaling));
        const TestActivation expected(tokens, size, scaling), out(tokens, size, scaling);
        ASSERT_EQ(LaunchGatedActivation({halves.view, tokens, size, expected.view}, nullptr),
                  cudaSuccess);
        ASSERT_EQ(LaunchGatedActivation({.gate_up = interleaved,
                                         .tokens = tokens,
                                         .size = size,
                                         .out = out.view,
                                         .layout = GateLayout::kInterleaved},
                                        nullptr),
                  cudaSuccess);
        EXPECT_EQ(out.data.Download(), expected.data.Download());
        EXPECT_TRUE(out.data.GuardsIntact());
      }
    }
  }
}

TEST(GatedActivation, RefusesWhatItCannotDo) {
  const TestProduct gate_up(2, 128, false, 1);
  const TestActivation out(2, 64, Scaling::kToken);
  EXPECT_EQ(LaunchGatedActivation({gate_up.view, 2, 60, out.view}, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(LaunchGatedActivation({gate_up.view, 2, 72, out.view}, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(LaunchGatedActivation({{}, 2, 64, out.view}, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(LaunchGatedActivation({gate_up.view, 2, 64, {}}, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(LaunchGatedActivation({gate_up.view, 0, 64, out.view}, nullptr), cudaSuccess);
}

TEST(Quantize, MatchesDoubleAtAllWidthsAndScalings) {
  for (const int width : {8, 576, 4096, 16384}) {
    for (const int tokens : {1, 3, 17, 48, 63, 65, 255, 2000}) {
      if (tokens * width > kMaxElements) continue;
      for (const Scaling scaling : kAllScalings) {
        SCOPED_TRACE(Name(tokens, width, scaling));
        const TestProduct in(tokens, width, false, 1);
        const TestActivation out(tokens, width, scaling);
        ASSERT_EQ(LaunchQuantize({in.data.get(), in.stride, tokens, width, out.view}, nullptr),
                  cudaSuccess);
        ExpectActivation(out, in.values);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Quantize, RoundsFloatsOnce) {
  for (const int width : {8, 576, 5120}) {
    for (const int tokens : {1, 33, 515}) {
      for (const Scaling scaling : kAllScalings) {
        SCOPED_TRACE(Name(tokens, width, scaling));
        const std::vector<float> values = RandomNormal(static_cast<size_t>(tokens) * width, 1);
        const DeviceBuffer<float> in(values);
        const TestActivation out(tokens, width, scaling);
        ASSERT_EQ(LaunchQuantize({in.get(), width, tokens, width, out.view, Type::kF32}, nullptr),
                  cudaSuccess);
        ExpectActivation(out, {values.begin(), values.end()});
        if (HasFatalFailure()) return;
        const TestActivation alone(1, width, scaling);
        const float* last = in.get() + static_cast<int64_t>(tokens - 1) * width;
        ASSERT_EQ(LaunchQuantize({last, width, 1, width, alone.view, Type::kF32}, nullptr),
                  cudaSuccess);
        EXPECT_EQ(alone.RowBytes(0), out.RowBytes(tokens - 1));
      }
    }
  }
}

// Many rows go through another kernel than few.
TEST(Quantize, RowsBitsDependOnTheRowAlone) {
  constexpr int kTokens = 515;
  for (const int width : {24, 768, 1032, 2056}) {
    const TestProduct in(kTokens, width, false, 1);
    for (const Scaling scaling : kAllScalings) {
      SCOPED_TRACE(Name(kTokens, width, scaling));
      const TestActivation all(kTokens, width, scaling);
      ASSERT_EQ(LaunchQuantize({in.data.get(), in.stride, kTokens, width, all.view}, nullptr),
                cudaSuccess);
      EXPECT_TRUE(all.data.GuardsIntact());
      EXPECT_TRUE(all.scales.GuardsIntact());
      for (const int token : {0, 1, 257, 514}) {
        const TestActivation alone(1, width, scaling);
        const Bf16* row = in.data.get() + token * in.stride;
        ASSERT_EQ(LaunchQuantize({row, in.stride, 1, width, alone.view}, nullptr), cudaSuccess);
        EXPECT_EQ(alone.RowBytes(0), all.RowBytes(token)) << "row " << token;
      }
    }
  }
}

TEST(Quantize, GivesZeroRowsAndSaturatesAtKnownScales) {
  std::vector<float> rows(2 * 128, 0.0f);
  rows[128] = 1e30f, rows[129] = -1e30f;
  const DeviceBuffer<Bf16> in(ToBf16(rows));
  for (const Scaling scaling : {Scaling::kTensor, Scaling::kToken, Scaling::kTokenGroup}) {
    SCOPED_TRACE(ScalingName(scaling));
    const TestActivation out(2, 128, scaling);
    ASSERT_EQ(LaunchQuantize({in.get(), 128, 2, 128, out.view}, nullptr), cudaSuccess);
    const std::vector<uint8_t> codes = out.data.Download();
    for (int c = 0; c < 128; ++c) ASSERT_EQ(codes[c], 0) << c;
    EXPECT_EQ(FromFp8(codes[128]), 448);
    EXPECT_EQ(FromFp8(codes[129]), -448);
    if (scaling != Scaling::kTensor) {
      EXPECT_FLOAT_EQ(out.scales.Download()[0], 1e-12f / 448);
    }
  }
}

TEST(Quantize, RefusesWhatItCannotDo) {
  const TestProduct in(2, 64, false, 1);
  const TestActivation out(2, 64, Scaling::kToken);
  const Bf16* data = in.data.get();
  EXPECT_EQ(LaunchQuantize({data + 1, 72, 2, 64, out.view}, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(LaunchQuantize({data, 68, 2, 64, out.view}, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(LaunchQuantize({data, 56, 2, 64, out.view}, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(LaunchQuantize({nullptr, 72, 2, 64, out.view}, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(LaunchQuantize({data, 72, 2, 64, out.view, Type::kFp8}, nullptr),
            cudaErrorInvalidValue);
  EXPECT_EQ(LaunchQuantize({data, 72, 0, 64, out.view}, nullptr), cudaSuccess);
}

TEST(Embed, MultipliesByTheFactor) {
  constexpr int kVocab = 7, kWidth = 1040;
  constexpr float kFactor = 12.3f;
  const TestProduct table(kVocab, kWidth, false, 1);
  const std::vector<int32_t> ids = {6, kVocab, 0};
  const DeviceBuffer<int32_t> device_ids(ids);
  const DeviceBuffer<float> residual(ids.size() * kWidth);
  ASSERT_EQ(LaunchEmbed({.ids = device_ids.get(),
                         .table = table.data.get(),
                         .table_stride = table.stride,
                         .vocab = kVocab,
                         .tokens = static_cast<int>(ids.size()),
                         .width = kWidth,
                         .residual = residual.get(),
                         .factor = kFactor},
                        nullptr),
            cudaSuccess);
  const std::vector<float> out = residual.Download();
  for (int c = 0; c < kWidth; ++c) {
    ASSERT_EQ(out[c], kFactor * static_cast<float>(table.values[6 * kWidth + c])) << c;
    ASSERT_TRUE(std::isnan(out[kWidth + c])) << c;
    ASSERT_EQ(out[2 * kWidth + c], kFactor * static_cast<float>(table.values[c])) << c;
  }
  EXPECT_TRUE(residual.GuardsIntact());
}

TEST(Embed, CopiesRowsAndFailsForeignIds) {
  constexpr int kVocab = 50;
  for (const int width : {8, 576, 4096}) {
    const TestProduct table(kVocab, width, false, 1);
    const std::vector<int32_t> ids = {49, 0, 7, 7, -1, kVocab, INT32_MIN, 3};
    const DeviceBuffer<int32_t> device_ids(ids);
    const DeviceBuffer<float> residual(ids.size() * width);
    const EmbedArgs args{.ids = device_ids.get(),
                         .table = table.data.get(),
                         .table_stride = table.stride,
                         .vocab = kVocab,
                         .tokens = static_cast<int>(ids.size()),
                         .width = width,
                         .residual = residual.get()};
    ASSERT_EQ(LaunchEmbed(args, nullptr), cudaSuccess);
    const std::vector<float> out = residual.Download();
    for (size_t t = 0; t < ids.size(); ++t) {
      for (int c = 0; c < width; ++c) {
        if (ids[t] < 0 || ids[t] >= kVocab) {
          ASSERT_TRUE(std::isnan(out[t * width + c]));
        } else {
          ASSERT_EQ(out[t * width + c], table.values[static_cast<size_t>(ids[t]) * width + c]);
        }
      }
    }
    EXPECT_TRUE(residual.GuardsIntact());

    EmbedArgs bad = args;
    bad.table_stride = width - 8;
    EXPECT_EQ(LaunchEmbed(bad, nullptr), cudaErrorInvalidValue);
    bad = args;
    bad.ids = nullptr;
    EXPECT_EQ(LaunchEmbed(bad, nullptr), cudaErrorInvalidValue);
  }
}

// Ranks have parts of the table.
TEST(Embed, ReadsTheRowsOfParts) {
  constexpr int kVocab = 50, kRows = 20, kWidth = 576;
  std::vector<TestProduct> parts;
  for (int part = 0; part < 3; ++part) parts.emplace_back(kRows, kWidth, false, part + 1);
  const std::vector<int32_t> ids = {49, 0, 19, 20, 39, 40, kVocab, -1};
  const DeviceBuffer<int32_t> device_ids(ids);
  const DeviceBuffer<float> residual(ids.size() * kWidth);
  EmbedArgs args{.ids = device_ids.get(),
                 .table = parts[1].data.get(),
                 .table_stride = parts[1].stride,
                 .vocab = kVocab,
                 .tokens = static_cast<int>(ids.size()),
                 .width = kWidth,
                 .residual = residual.get(),
                 .part_rows = kRows};
  EXPECT_EQ(LaunchEmbed(args, nullptr), cudaErrorInvalidValue);
  for (int part = 0; part < 3; ++part) args.parts[part] = parts[part].data.get();
  ASSERT_EQ(LaunchEmbed(args, nullptr), cudaSuccess);
  const std::vector<float> out = residual.Download();
  for (size_t t = 0; t < ids.size(); ++t) {
    for (int c = 0; c < kWidth; ++c) {
      if (ids[t] < 0 || ids[t] >= kVocab) {
        ASSERT_TRUE(std::isnan(out[t * kWidth + c]));
        continue;
      }
      const size_t row = ids[t] % kRows;
      ASSERT_EQ(out[t * kWidth + c], parts[ids[t] / kRows].values[row * kWidth + c]) << ids[t];
    }
  }
  EXPECT_TRUE(residual.GuardsIntact());
}

TEST(GatherRows, CopiesRowsWithTheirScales) {
  constexpr int kTokens = 33;
  const std::vector<int32_t> indices = {32, 0, 5, 5, 31, 1, 17};
  const DeviceBuffer<int32_t> device_indices(indices);
  const int rows = static_cast<int>(indices.size());
  for (const int width : {64, 576, 4096}) {
    for (const Scaling scaling : kAllScalings) {
      SCOPED_TRACE(Name(kTokens, width, scaling));
      const TestProduct values(kTokens, width, false, 1);
      const TestActivation in(kTokens, width, scaling);
      ASSERT_EQ(
          LaunchQuantize({values.data.get(), values.stride, kTokens, width, in.view}, nullptr),
          cudaSuccess);
      const TestActivation out(rows, width, scaling);
      ASSERT_EQ(LaunchGatherRows({in.view, kTokens, device_indices.get(), rows, out.view}, nullptr),
                cudaSuccess);
      for (int r = 0; r < rows; ++r) EXPECT_EQ(out.RowBytes(r), in.RowBytes(indices[r])) << r;
      EXPECT_TRUE(out.data.GuardsIntact());
      EXPECT_TRUE(out.scales.GuardsIntact());
    }
  }
}

// Rows of pairs, by a list of which a part counts.
TEST(GatherRows, CopiesTheTokensOfPairs) {
  constexpr int kSlots = 3;
  for (const int tokens : {7, 400}) {  // many rows go through another kernel
    const int pairs = tokens * kSlots, grouped = pairs - 5;
    std::vector<int32_t> order(pairs, -1);
    for (int i = 0; i < grouped; ++i) order[i] = i * 11 % pairs;
    const DeviceBuffer<int32_t> indices(order), count(std::vector<int32_t>{grouped});
    for (const int width : {136, 2048, 2880}) {
      const TestProduct values(tokens, width, false, 1);
      for (const Scaling scaling : kAllScalings) {
        SCOPED_TRACE(Name(tokens, width, scaling));
        const TestActivation in(tokens, width, scaling), out(pairs, width, scaling);
        ASSERT_EQ(
            LaunchQuantize({values.data.get(), values.stride, tokens, width, in.view}, nullptr),
            cudaSuccess);
        ASSERT_EQ(
            LaunchGatherRows({in.view, tokens, indices.get(), pairs, out.view, kSlots, count.get()},
                             nullptr),
            cudaSuccess);
        for (int i = 0; i < grouped; i += std::max(1, grouped / 9)) {
          EXPECT_EQ(out.RowBytes(i), in.RowBytes(order[i] / kSlots)) << "row " << i;
        }
        EXPECT_EQ(out.RowBytes(grouped)[0], 0xff);  // not written
        EXPECT_TRUE(out.data.GuardsIntact());
        EXPECT_TRUE(out.scales.GuardsIntact());
      }
    }
  }
}

TEST(GatherRows, RefusesUnlikeActivations) {
  const TestActivation in(2, 64, Scaling::kToken), out(2, 64, Scaling::kTokenGroup),
      wide(2, 200, Scaling::kToken);
  const DeviceBuffer<int32_t> indices(2);
  EXPECT_EQ(LaunchGatherRows({in.view, 2, indices.get(), 2, out.view}, nullptr),
            cudaErrorInvalidValue);
  EXPECT_EQ(LaunchGatherRows({in.view, 2, indices.get(), 2, wide.view}, nullptr),
            cudaErrorInvalidValue);
  EXPECT_EQ(LaunchGatherRows({in.view, 2, indices.get(), 2, in.view}, nullptr),
            cudaErrorInvalidValue);
}

}  // namespace
}  // namespace millrace::kernels
