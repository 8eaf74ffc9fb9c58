#include "formats/tensors/dequantize.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "formats/json/json.h"
#include "formats/twins/tensor_test_util.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

absl::Span<const uint8_t> Bytes(const std::string& bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

std::vector<TensorType> QuantizedTypes() {
  std::vector<TensorType> types;
  for (int type = 0; type < kNumTensorTypes; ++type) {
    if (Traits(static_cast<TensorType>(type)).quantized) {
      types.push_back(static_cast<TensorType>(type));
    }
  }
  return types;
}

TEST(DequantizeTest, EveryKindGivesGgmlsOwnValuesBitForBit) {
  // Made by tests/reference/make_quantized_reference.py.
  std::ifstream file("tests/reference/quantized_reference.json");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const absl::StatusOr<Json> json = ParseJson(text, {});
  ASSERT_TRUE(json.ok()) << json.status();
  std::vector<TensorType> types = QuantizedTypes();
  std::erase_if(types, [](TensorType type) {  // our own
    return type == TensorType::kInt4x32 || type == TensorType::kInt4x128;
  });
  EXPECT_EQ(json->size(), types.size());
  for (const TensorType type : types) {
    const std::string name(Traits(type).name);
    ASSERT_TRUE(json->contains(name)) << name;
    const std::string bytes = absl::HexStringToBytes((*json)[name]["bytes"].get<std::string>());
    const std::string expected = absl::HexStringToBytes((*json)[name]["values"].get<std::string>());
    std::vector<float> values(256, std::nanf(""));
    Dequantize(type, Bytes(bytes), absl::MakeSpan(values));
    ASSERT_EQ(expected.size(), values.size() * sizeof(float));
    for (size_t i = 0; i < values.size(); ++i) {
      float value;
      std::memcpy(&value, &expected[i * sizeof(value)], sizeof(value));
      EXPECT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(value))
          << name << "[" << i << "] is " << values[i] << ", ggml says " << value;
    }
  }
}

// The encoder that makes other tests' models stays near its input.
TEST(DequantizeTest, TheTestsEncoderIsNear) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> draw(-1, 1);
  std::vector<float> values(512);
  for (float& value : values) value = draw(random);
  for (const TensorType type : QuantizedTypes()) {
    const std::vector<float> back = DecodeTensor(type, Bytes(EncodeTensor(type, values)));
    double squares = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      squares += std::pow(static_cast<double>(back[i]) - values[i], 2);
    }
    const double error = std::sqrt(squares / static_cast<double>(values.size()));
    // Lattices have points for some of the values alone.
    const bool lattice = type >= TensorType::kIq3S && type <= TensorType::kIq2Xxs;
    const bool one_bit = type == TensorType::kIq1S || type == TensorType::kIq1M;
    const double steps = one_bit                    ? 1.6
                         : lattice                  ? 2
                         : type == TensorType::kQ2K ? 3
                         : type == TensorType::kQ3K ? 7
                                                    : 13;
    EXPECT_LT(error, 2 / steps / std::sqrt(12) * 1.4) << Traits(type).name;
  }
}

}  // namespace
}  // namespace millrace
