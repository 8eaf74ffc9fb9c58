#include "server/convert/element_conversion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

namespace millrace {
namespace {

using testing::ElementsAre;

const TorchType& Type(std::string_view name) { return *FindSafetensorsType(name); }

template <typename To, typename From>
std::vector<To> Cast(const char* from, const std::vector<From>& in, const char* to,
                     absl::Status* status) {
  std::vector<To> out(in.size());
  *status = CastElements(
      Type(from), {reinterpret_cast<const uint8_t*>(in.data()), in.size() * sizeof(From)}, Type(to),
      {reinterpret_cast<uint8_t*>(out.data()), out.size() * sizeof(To)});
  return out;
}

TEST(ElementConversionTest, RoundsToNearestAndTiesToEven) {
  absl::Status status;
  // 1 + 2^-8 lies in the middle of two bfloat16 numbers, as does 1 + 3 * 2^-8.
  EXPECT_THAT((Cast<uint16_t, float>("F32", {1, 1 + 0x1p-8f, 1 + 0x1.8p-7f, -2}, "BF16", &status)),
              ElementsAre(0x3f80, 0x3f80, 0x3f82, 0xc000));
  EXPECT_TRUE(status.ok());
  EXPECT_THAT((Cast<uint16_t, float>("F32", {1 + 0x1p-11f, 1 + 0x1.8p-10f}, "F16", &status)),
              ElementsAre(0x3c00, 0x3c02));
  EXPECT_THAT((Cast<float, uint16_t>("F16", {0x3c00, 0xfc00}, "F32", &status)),
              ElementsAre(1, -std::numeric_limits<float>::infinity()));
  EXPECT_TRUE(status.ok());
}

TEST(ElementConversionTest, WhatIsTooLargeIsRefused) {
  absl::Status status;
  Cast<uint16_t, float>("F32", {65504}, "F16", &status);
  EXPECT_TRUE(status.ok());
  Cast<uint16_t, float>("F32", {1, 65520}, "F16", &status);
  EXPECT_EQ(status.message(), "holds numbers that are too large for torch.float16");
  // What was infinite stays so.
  Cast<uint16_t, float>("F32", {std::numeric_limits<float>::infinity()}, "F16", &status);
  EXPECT_TRUE(status.ok());
}

TEST(ElementConversionTest, Float8AndIntegersStay) {
  for (const TorchType& type : TorchTypes()) {
    EXPECT_EQ(IsCast(type),
              type.safetensors == "F32" || type.safetensors == "F16" || type.safetensors == "BF16");
  }
}

TEST(ElementConversionTest, PairsBecomeHalves) {
  const std::vector<uint8_t> in = {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5};
  std::vector<uint8_t> out(in.size());
  PairsToHalves(in, 6, absl::MakeSpan(out));
  EXPECT_THAT(out, ElementsAre(0, 0, 2, 2, 4, 4, 1, 1, 3, 3, 5, 5));
}

}  // namespace
}  // namespace millrace
