#include "executors/tensor_model.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace millrace {
namespace {

const std::vector<TensorSpec> kSpecs = {
    {.name = "ids",
     .type = DataType::kInt64,
     .shape = {{"batch", 1, 4}, {"length", 1, 8}},
     .values = ValueRange{0, 9}},
    {.name = "mask", .type = DataType::kBool, .shape = {{"batch", 1, 4}, {"length", 1, 8}}},
    {.name = "bias", .type = DataType::kFp32, .shape = {{"", 2, 2}}},
};

template <typename Number>
Tensor Make(DataType type, std::vector<int64_t> shape, const std::vector<Number>& values) {
  Tensor tensor{.type = type, .shape = std::move(shape)};
  tensor.data.resize(values.size() * sizeof(Number));
  std::memcpy(tensor.data.data(), values.data(), tensor.data.size());
  return tensor;
}

std::vector<Tensor> Good() {
  return {Make<int64_t>(DataType::kInt64, {2, 3}, {0, 1, 2, 3, 4, 9}),
          Make<uint8_t>(DataType::kBool, {2, 3}, {1, 1, 1, 0, 1, 0}),
          Make<float>(DataType::kFp32, {2}, {0.5f, -1.0f})};
}

std::string Refusal(const std::vector<Tensor>& inputs) {
  const absl::Status status = CheckInputs(kSpecs, inputs);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(TensorModelTest, DataTypesHaveTheProtocolsNames) {
  for (const char* name :
       {"BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "FP16", "BF16", "FP32", "FP64"}) {
    const std::optional<DataType> type = FindDataType(name);
    ASSERT_TRUE(type.has_value()) << name;
    EXPECT_EQ(DataTypeName(*type), name);
  }
  EXPECT_FALSE(FindDataType("BYTES").has_value());
  EXPECT_FALSE(FindDataType("fp32").has_value());
  EXPECT_EQ(DataTypeBytes(DataType::kBf16), 2);
  EXPECT_EQ(DataTypeBytes(DataType::kFp64), 8);
}

TEST(TensorModelTest, WhatFitsPasses) {
  EXPECT_TRUE(CheckInputs(kSpecs, Good()).ok());
  std::vector<Tensor> least = {Make<int64_t>(DataType::kInt64, {1, 1}, {5}),
                               Make<uint8_t>(DataType::kBool, {1, 1}, {0}), Good()[2]};
  EXPECT_TRUE(CheckInputs(kSpecs, least).ok());
}

TEST(TensorModelTest, WhatDoesNotFitIsNamed) {
  std::vector<Tensor> inputs = Good();
  inputs[0] = Make<int32_t>(DataType::kInt32, {2, 3}, {0, 1, 2, 3, 4, 9});
  EXPECT_EQ(Refusal(inputs), "input ids: datatype is INT32; allowed: INT64");

  inputs = Good();
  inputs[0].shape = {6};
  EXPECT_EQ(Refusal(inputs), "input ids: shape is [6]; allowed: [batch (1 to 4), length (1 to 8)]");
  inputs[0].shape = {2, 9};
  EXPECT_EQ(Refusal(inputs),
            "input ids: shape is [2, 9]; allowed: [batch (1 to 4), length (1 to 8)]");
  inputs[0].shape = {-2, -3};
  EXPECT_EQ(Refusal(inputs),
            "input ids: shape is [-2, -3]; allowed: [batch (1 to 4), length (1 to 8)]");

  inputs = Good();
  inputs[1].shape = {3, 2};
  EXPECT_EQ(Refusal(inputs), "input mask: shape is [3, 2]; allowed: batch is 2 as in input ids");

  inputs = Good();
  inputs[2].data.pop_back();
  EXPECT_EQ(Refusal(inputs), "input bias: has 7 bytes; allowed: 8, for FP32 [2]");
}

TEST(TensorModelTest, ValuesOutOfRangeAreStopped) {
  std::vector<Tensor> inputs = Good();
  inputs[0] = Make<int64_t>(DataType::kInt64, {2, 3}, {0, 1, 2, 3, 10, 9});
  EXPECT_EQ(Refusal(inputs), "input ids: element 4 is 10; allowed: 0 to 9");
  inputs[0] = Make<int64_t>(DataType::kInt64, {2, 3}, {-1, 1, 2, 3, 4, 9});
  EXPECT_EQ(Refusal(inputs), "input ids: element 0 is -1; allowed: 0 to 9");

  inputs = Good();
  inputs[1].data[5] = 2;
  EXPECT_EQ(Refusal(inputs), "input mask: element 5 is 2; allowed: 0, 1");
}

}  // namespace
}  // namespace millrace
