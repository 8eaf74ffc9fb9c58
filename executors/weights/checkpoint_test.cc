#include "executors/weights/checkpoint.h"

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/strings.h"
#include "executors/weights/shares.h"
#include "formats/families/families.h"
#include "formats/gguf/gguf.h"
#include "formats/huggingface/safetensors.h"
#include "formats/twins/gguf_test_util.h"
#include "formats/twins/hf_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
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
      .Tensor("d.bias", TensorType::kF32, {4}, absl::MakeConstSpan(ones).first(4))
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
  EXPECT_EQ((*checkpoint.Bias("e.weight"))->name, "e.bias");
  EXPECT_EQ(*checkpoint.Bias("a.weight"), nullptr);
  EXPECT_THAT(error(checkpoint.Bias("d.weight")),
              HasSubstr("d.bias is F32 [4], allowed: as many as d.weight has rows, 8"));
  EXPECT_EQ((*checkpoint.Matrices({"a.weight", "c.weight"}))[1]->type, TensorType::kQ8_0);
  EXPECT_THAT(error(checkpoint.Matrices({"a.weight", "d.weight"})),
              HasSubstr("d.weight is F32 [8, 32]"));
  EXPECT_THAT(error(checkpoint.Vector("z")), HasSubstr("no tensor z"));
  EXPECT_THAT(error(checkpoint.Vector("a.weight")),
              HasSubstr("allowed: F32, F16 or BF16 of one dimension"));
  EXPECT_EQ(checkpoint.Floats(**checkpoint.Vector("half")), std::vector<float>(4, 1.0f));
}

// A folder of these tensors alone.
std::unique_ptr<const SafetensorsFolder> Open(const SafetensorsWriter& writer) {
  const std::string folder = StrCat(::testing::TempDir(), "checkpoint_test_", getpid());
  std::filesystem::create_directories(folder);
  writer.Write(folder + "/model.safetensors");
  auto opened = SafetensorsFolder::Open(folder, "checkpoint_test", kLlama);
  std::filesystem::remove_all(folder);
  EXPECT_TRUE(opened.ok()) << opened.status();
  return *std::move(opened);
}

// Rows in groups: q's, k's and v's of the first of three heads, then of the second, and so on.
TEST(CheckpointTest, FindsThePartsOfRowsInGroups) {
  constexpr int64_t kHeads = 3;
  const std::vector<float> ones(24 * 2, 1.0f);
  SafetensorsWriter writer;
  writer.Tensor("model.layers.0.self_attn.q_proj.weight", TensorType::kF32, {24, 2}, ones);
  const auto folder = Open(writer);
  const Checkpoint checkpoint(*folder);
  const std::vector<const TensorInfo*> tensors = {folder->FindTensor("blk.0.attn_q.weight")};
  const auto parts = [&](const std::vector<int64_t>& sizes) {  // of a head
    Shard shard{.rows = {}, .columns = std::nullopt, .groups = kHeads};
    for (const int64_t size : sizes) shard.rows.push_back(Whole(kHeads * size));
    return checkpoint.Parts(tensors, shard);
  };
  const auto found = parts({2, 1, 5});
  ASSERT_TRUE(found.ok()) << found.status();
  std::vector<int64_t> rows;
  for (const Checkpoint::Part& part : *found) {
    for (int64_t row = 0; row < part.rows.total; ++row) {
      rows.push_back(part.Row(row));
      const int64_t end = part.RunEnd(row);
      EXPECT_EQ(part.Row(end - 1) - part.Row(row), end - 1 - row);
      EXPECT_TRUE(end == part.rows.total || part.Row(end) > part.Row(end - 1) + 1);
    }
  }
  EXPECT_THAT(rows, ElementsAre(0, 1, 8, 9, 16, 17,  //
                                2, 10, 18,           //
                                3, 4, 5, 6, 7, 11, 12, 13, 14, 15, 19, 20, 21, 22, 23));
  EXPECT_THAT(std::string(parts({2, 1}).status().message()),
              HasSubstr("q_proj.weight is F32 [24, 2], allowed: the rows of the parts"));
  Shard uneven{.rows = {Whole(23), Whole(1)}, .columns = std::nullopt, .groups = kHeads};
  EXPECT_FALSE(checkpoint.Parts(tensors, uneven).ok());
}

TEST(CheckpointTest, FindsScalesInEverySpelling) {
  const std::string up = "model.layers.0.mlp.up_proj.";
  const std::string q = "model.layers.1.self_attn.q_proj.";
  const std::vector<float> ones(64, 1.0f);
  SafetensorsWriter writer;
  writer.Tensor(up + "weight", TensorType::kFp8E4m3, {2, 32}, ones)
      .Tensor(up + "weight_scale", TensorType::kBf16, {2, 1}, {0.5f, 0.25f})
      .Tensor(up + "input_scale", TensorType::kF32, {}, {0.125f})
      .Tensor(q + "weight", TensorType::kFp8E4m3, {2, 32}, ones)
      .Tensor(q + "weight_scale_inv", TensorType::kF32, {1, 1}, {3.0f})
      .Tensor("model.layers.0.self_attn.k_scale", TensorType::kF32, {1}, {2.0f})
      .Tensor("model.layers.0.self_attn.v_scale", TensorType::kF32, {1}, {4.0f})
      .Tensor("model.layers.1.self_attn.attn.k_scale", TensorType::kF32, {1}, {5.0f})
      .Tensor("model.layers.2.self_attn.k_proj.output_scale", TensorType::kF16, {1}, {6.0f})
      .Tensor("model.layers.2.self_attn.v_proj.v_scale", TensorType::kF32, {}, {7.0f});
  const auto folder = Open(writer);
  const Checkpoint checkpoint(*folder);
  const auto scales = checkpoint.ScalesOf("blk.0.ffn_up.weight");
  ASSERT_TRUE(scales.ok()) << scales.status();
  EXPECT_THAT(scales->weight, ElementsAre(0.5f, 0.25f));
  EXPECT_EQ(scales->input, 0.125f);
  const auto block = checkpoint.ScalesOf("blk.1.attn_q.weight");
  ASSERT_TRUE(block.ok()) << block.status();
  EXPECT_THAT(block->weight, ElementsAre(3.0f));
  EXPECT_EQ(block->input, std::nullopt);
  const auto kv = [&](int layer) { return checkpoint.KvScalesOf(layer).value(); };
  EXPECT_EQ(kv(0).k, 2.0f);
  EXPECT_EQ(kv(0).v, 4.0f);
  EXPECT_EQ(kv(1).k, 5.0f);
  EXPECT_EQ(kv(1).v, std::nullopt);
  EXPECT_EQ(kv(2).k, 6.0f);
  EXPECT_EQ(kv(2).v, 7.0f);
  EXPECT_THAT(std::string(checkpoint.ScalesOf("blk.9.attn_q.weight").status().message()),
              HasSubstr("checkpoint_test: no tensor "
                        "model.layers.9.self_attn.q_proj.weight_scale"));
}

TEST(CheckpointTest, RefusesScalesThatMakeNoSense) {
  for (const float scale : {0.0f, -1.0f, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    SafetensorsWriter writer;
    writer.Tensor("lm_head.weight_scale", TensorType::kF32, {1}, {scale})
        .Tensor("model.layers.0.self_attn.k_scale", TensorType::kF32, {1}, {scale});
    const auto folder = Open(writer);
    const Checkpoint checkpoint(*folder);
    EXPECT_THAT(std::string(checkpoint.ScalesOf("output.weight").status().message()),
                HasSubstr("tensor lm_head.weight_scale holds"));
    EXPECT_THAT(std::string(checkpoint.KvScalesOf(0).status().message()),
                HasSubstr("allowed: finite scales above 0"));
  }
  SafetensorsWriter writer;
  writer.Tensor("model.layers.0.self_attn.k_scale", TensorType::kF32, {2}, {1.0f, 2.0f})
      .Tensor("lm_head.weight_scale", TensorType::kFp8E4m3, {1}, {1.0f});
  const auto folder = Open(writer);
  const Checkpoint checkpoint(*folder);
  EXPECT_THAT(std::string(checkpoint.KvScalesOf(0).status().message()),
              HasSubstr("k_scale has 2 numbers, allowed: one"));
  EXPECT_THAT(std::string(checkpoint.ScalesOf("output.weight").status().message()),
              HasSubstr("is F8_E4M3, allowed: F32, F16 or BF16"));
}

}  // namespace
}  // namespace millrace
