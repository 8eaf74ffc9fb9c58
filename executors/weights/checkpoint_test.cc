#include "executors/weights/checkpoint.h"

#include <string>

#include "formats/gguf.h"
#include "formats/gguf_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

TEST(CheckpointTest, FindsAndRefusesByName) {
  const std::string path = ::testing::TempDir() + "/checkpoint_test.gguf";
  const std::vector<float> ones(64 * 4, 1.0f);
  GgufWriter writer;
  writer.String("general.architecture", "llama")
      .Tensor("a.weight", TensorType::kF32, {4, 64}, ones)
      .Tensor("b.weight", TensorType::kF32, {2, 64}, absl::MakeConstSpan(ones).first(128))
      .Tensor("c.weight", TensorType::kQ8_0, {4, 64}, ones)
      .Tensor("d.weight", TensorType::kF32, {8, 32}, ones)
      .Tensor("e.weight", TensorType::kF32, {4, 64}, ones)
      .Tensor("e.bias", TensorType::kF32, {4}, absl::MakeConstSpan(ones).first(4))
      .Tensor("half", TensorType::kF16, {4}, absl::MakeConstSpan(ones).first(4))
      .Write(path);
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const Checkpoint checkpoint(*file);

  EXPECT_TRUE(checkpoint.Has("a.weight"));
  EXPECT_FALSE(checkpoint.Has("z"));
  EXPECT_EQ((*checkpoint.Matrices({"a.weight", "b.weight"}))[1]->shape[0], 2);
  EXPECT_EQ((*checkpoint.Vector("e.bias"))->shape[0], 4);
  const auto error = [](const auto& result) { return std::string(result.status().message()); };
  EXPECT_THAT(error(checkpoint.Matrices({"z"})), HasSubstr("no tensor z"));
  EXPECT_THAT(error(checkpoint.Matrices({"e.bias"})),
              HasSubstr("e.bias is [4], allowed: two dimensions"));
  EXPECT_THAT(error(checkpoint.Matrices({"e.weight"})),
              HasSubstr("e.bias: biases are not supported"));
  EXPECT_THAT(error(checkpoint.Matrices({"a.weight", "c.weight"})), HasSubstr("c.weight is Q8_0"));
  EXPECT_THAT(error(checkpoint.Matrices({"a.weight", "d.weight"})),
              HasSubstr("d.weight is F32 [8, 32]"));
  EXPECT_THAT(error(checkpoint.Vector("z")), HasSubstr("no tensor z"));
  EXPECT_THAT(error(checkpoint.Vector("a.weight")),
              HasSubstr("allowed: F32, F16 or BF16 of one dimension"));
  EXPECT_EQ(checkpoint.Floats(**checkpoint.Vector("half")), std::vector<float>(4, 1.0f));
}

}  // namespace
}  // namespace millrace
