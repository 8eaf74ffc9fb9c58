#include "executors/weights/fp8_scaling.h"

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/strings.h"
#include "formats/families/families.h"
#include "formats/huggingface/safetensors.h"
#include "formats/twins/hf_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Reads the scales 1, 2, 3 … of this shape, beside a weight [out, in].
absl::StatusOr<Fp8Scaling> Read(int64_t out, int64_t in, const std::vector<int64_t>& shape) {
  std::vector<float> scales(
      std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()));
  std::iota(scales.begin(), scales.end(), 1.0f);
  const std::string module = "model.layers.0.mlp.up_proj.";
  SafetensorsWriter writer;
  writer
      .Tensor(module + "weight", TensorType::kFp8E4m3, {out, in},
              std::vector<float>(out * in, 1.0f))
      .Tensor(module + "weight_scale", TensorType::kF32, shape, scales);
  const std::string folder = StrCat(::testing::TempDir(), "fp8_scaling_test_", getpid());
  std::filesystem::create_directories(folder);
  writer.Write(folder + "/model.safetensors");
  const auto opened = SafetensorsFolder::Open(folder, "fp8_scaling_test", kLlama);
  std::filesystem::remove_all(folder);
  EXPECT_TRUE(opened.ok()) << opened.status();
  return Fp8Scaling::Read(Checkpoint(**opened), "blk.0.ffn_up.weight");
}

std::vector<float> Applied(const Fp8Scaling& scaling, int64_t row, int64_t column, int64_t count) {
  std::vector<float> values(count, 0.5f);
  scaling.Apply(row, column, absl::MakeSpan(values));
  return values;
}

TEST(Fp8ScalingTest, OneScaleIsOfAllElements) {
  const auto scaling = Read(3, 64, {1});
  ASSERT_TRUE(scaling.ok()) << scaling.status();
  EXPECT_THAT(Applied(*scaling, 2, 7, 57), Each(0.5f));
}

TEST(Fp8ScalingTest, AScaleForEachRow) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{3}, std::vector<int64_t>{3, 1}}) {
    const auto scaling = Read(3, 300, shape);
    ASSERT_TRUE(scaling.ok()) << scaling.status();
    EXPECT_THAT(Applied(*scaling, 2, 100, 200), Each(1.5f));
  }
}

TEST(Fp8ScalingTest, BlocksAreCutOffAtTheEdges) {
  const auto scaling = Read(130, 300, {2, 3});
  ASSERT_TRUE(scaling.ok()) << scaling.status();
  EXPECT_THAT(Applied(*scaling, 127, 126, 4), ElementsAre(0.5f, 0.5f, 1.0f, 1.0f));
  EXPECT_THAT(Applied(*scaling, 128, 255, 2), ElementsAre(2.5f, 3.0f));
  EXPECT_THAT(Applied(*scaling, 129, 256, 44), Each(3.0f));
}

TEST(Fp8ScalingTest, RefusesOtherCounts) {
  EXPECT_THAT(std::string(Read(130, 300, {5}).status().message()),
              HasSubstr("up_proj.weight has 5 scales; allowed: one, one for each of its 130 rows, "
                        "or one for each block of 128x128"));
}

}  // namespace
}  // namespace millrace
