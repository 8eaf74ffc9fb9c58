// Tests where the keys and values of groups of layers lie, and how many blocks they get, without a
// GPU.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "executors/cuda/cuda_model.h"
#include "executors/cuda/model_memory.h"
#include "executors/cuda/op_shapes_test_util.h"
#include "executors/executor_driver_test_util.h"
#include "executors/models/model_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/recurrent/delta_types.h"
#include "kernels/recurrent/mamba2_types.h"
#include "kernels/recurrent/short_convolution.h"

namespace millrace::cuda {
namespace {

using ::testing::HasSubstr;

constexpr int kMaxModelLen = 1024;
constexpr int64_t kBlockBytes = 2 * 2 * 16 * 64 * 2;  // keys and values, heads, positions, BF16

CudaSpec DeviceWith(int64_t kv_cache_memory) {
  return {{.kv_cache_memory = kv_cache_memory, .block_size = 16, .max_num_seqs = 4}};
}

// Returns the arena of a model of a layer for each of these windows, with two kv heads of 64.
KvArena ArenaOf(const std::vector<int32_t>& windows) {
  ModelConfig config = Shape(256, 512, 4, 2, 64, 1000);
  config.layers.resize(windows.size(), config.layers[0]);
  for (size_t i = 0; i < windows.size(); ++i) config.layers[i].softmax().window = windows[i];
  ShapesPlacer placer(config, kernels::Type::kBf16);
  const auto model = LoadModel(config, kMaxModelLen, placer);
  CheckOk(model.status());
  return DescribeKv(config, **model, DeviceWith(0), kMaxModelLen);
}

TEST(KvArenaTest, LayersOfAGroupLieTogether) {
  KvArena kv = ArenaOf({0, 100, 300, 100, 0, 100});
  EXPECT_EQ(kv.block_bytes(), kBlockBytes);
  const StateLayout& layout = kv.state.layout;
  ASSERT_EQ(layout.num_groups(), 3);
  EXPECT_EQ(layout.Paged(0)->window, std::nullopt);
  EXPECT_EQ(layout.Paged(1)->window, 100);
  EXPECT_EQ(layout.Paged(2)->window, 300);
  EXPECT_EQ(layout.Paged(0)->block_bytes, 2 * kBlockBytes);
  EXPECT_EQ(layout.Paged(1)->block_bytes, 3 * kBlockBytes);
  EXPECT_EQ(layout.Paged(2)->block_bytes, 1 * kBlockBytes);

  const std::vector<int32_t> blocks = {10, 4, 6};
  // One more of each group is the padding rows'.
  EXPECT_EQ(kv.Bytes(blocks), (2 * 11 + 3 * 5 + 1 * 7) * kBlockBytes);
  uint8_t* const memory = reinterpret_cast<uint8_t*>(4096);
  kv.Place(blocks, memory);
  const auto blocks_before = [&](int32_t layer) {
    return (kv.LayerData(layer) - memory) / kBlockBytes;
  };
  EXPECT_EQ(blocks_before(0), 0);
  EXPECT_EQ(blocks_before(4), 11);
  EXPECT_EQ(blocks_before(1), 22);
  EXPECT_EQ(blocks_before(3), 27);
  EXPECT_EQ(blocks_before(5), 32);
  EXPECT_EQ(blocks_before(2), 37);  // its seven are the last
}

// Windows that no sequence exceeds are none, so that all layers share a pool, in their order.
TEST(KvArenaTest, WithoutShorterWindowsThereIsOnePool) {
  KvArena kv = ArenaOf({0, kMaxModelLen, 0});
  ASSERT_EQ(kv.state.layout.num_groups(), 1);
  ASSERT_EQ(kv.pools.size(), 1);
  EXPECT_EQ(kv.pools[0].layers, 3);
  uint8_t* const memory = reinterpret_cast<uint8_t*>(4096);
  kv.Place({9}, memory);
  for (int32_t layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(kv.LayerData(layer), memory + layer * 10 * kBlockBytes);
  }
}

// Two gated delta rules behind a layer of attention, with 4 value heads of 2 key heads.
ModelConfig WithStates() {
  ModelConfig config = ShapeWithStates(
      256, 512, {.key_heads = 2, .value_heads = 4, .key_size = 128, .value_size = 128});
  config.layers[0] = Shape(256, 512, 4, 2, 64, 1000).layers[0];
  return config;
}

// The states of a place are in one piece. Behind the slots lies the place of padding rows, and then
// checkpoints.
TEST(KvArenaTest, StatesOfAPlaceLieTogether) {
  const ModelConfig config = WithStates();
  ShapesPlacer placer(config, kernels::Type::kBf16);
  const auto model = LoadModel(config, kMaxModelLen, placer);
  CheckOk(model.status());
  KvArena kv = DescribeKv(config, **model, DeviceWith(0), kMaxModelLen);
  constexpr int64_t kLayer = 4 * kernels::StateFloats({.key_heads = 2, .value_heads = 4});
  ASSERT_EQ(kv.state.layout.num_groups(), 2);
  EXPECT_EQ(kv.state.layout.Paged(0)->block_bytes, kBlockBytes);
  EXPECT_EQ(kv.state.layout.SlotBytes(), 2 * kLayer);
  EXPECT_EQ(kv.pools[1].place_bytes, 2 * kLayer);
  const std::vector<int32_t> blocks = {10, 3};
  EXPECT_EQ(kv.Bytes(blocks), 11 * kBlockBytes + (4 + 1 + 3) * 2 * kLayer);
  uint8_t* const memory = reinterpret_cast<uint8_t*>(4096);
  kv.Place(blocks, memory);
  EXPECT_EQ(kv.LayerData(0), memory);
  EXPECT_EQ(kv.StateData(1), memory + 11 * kBlockBytes);
  EXPECT_EQ(kv.StateData(2), kv.StateData(1) + kLayer);
}

// The state that a model states is what the kernels lay out.
TEST(KvArenaTest, StatesAreThoseOfTheKernels) {
  const int tokens = CudaPages(16, false, kMaxModelLen).delta_tokens;
  EXPECT_EQ(tokens, kernels::kDeltaBlockTokens);
  for (const auto& [key_heads, value_heads] :
       std::vector<std::pair<int, int>>{{1, 1}, {1, 3}, {2, 4}, {16, 16}, {16, 48}, {16, 64}}) {
    const GatedDelta delta{.key_heads = key_heads,
                           .value_heads = value_heads,
                           .key_size = kernels::kDeltaHeadSize,
                           .value_size = kernels::kDeltaHeadSize};
    EXPECT_EQ(GatedDeltaState(delta, tokens).bytes(),
              4 * kernels::StateFloats({.key_heads = key_heads, .value_heads = value_heads}));
  }
  for (const int groups : {1, 2, 8}) {
    const Mamba2 mixer{
        .heads = 16, .head_size = 64, .groups = groups, .state_size = 128, .width = 4};
    EXPECT_EQ(Mamba2State(mixer).bytes(),
              4 * kernels::Mamba2Floats(
                      {.heads = 16, .head_size = 64, .groups = groups, .state_size = 128}));
  }
  for (const int width : {2, 3, 8}) {
    EXPECT_EQ(ShortConvolutionBytes(width, 2048), 4 * kernels::ShortConvolutionFloats(width, 2048));
  }
}

TEST(KvArenaTest, StatesAndCheckpointsFitTheMemory) {
  const ModelConfig config = WithStates();
  ShapesPlacer placer(config, kernels::Type::kBf16);
  const auto model = LoadModel(config, kMaxModelLen, placer);
  CheckOk(model.status());
  const KvArena kv = DescribeKv(config, **model, DeviceWith(0), kMaxModelLen);
  const int64_t slot = kv.state.layout.SlotBytes();
  StepLimits limits{};
  limits.max_num_seqs = 4;
  limits.max_num_batched_tokens = 64;
  limits.max_model_len = kMaxModelLen;
  limits.state = kv.state.layout;
  CudaSpec device = DeviceWith(5 * slot + 101 * kBlockBytes);
  device.state_cache_memory = 4 * slot - 1;  // beside it
  const auto count = [&] { return CountBlocks(device, limits, kv, 0, 1); };
  EXPECT_EQ(*count(), (std::vector<int32_t>{100, 3}));
  device.kv_cache_memory = 5 * slot + 2 * kBlockBytes - 1;
  EXPECT_THAT(std::string(count().status().message()),
              HasSubstr(StrCat("needed: at least two blocks of ", kBlockBytes, ", and 5 states of ",
                               slot)));
}

TEST(KvArenaTest, BlocksOfGroupsFitTheMemory) {
  StepLimits limits{};
  limits.max_num_seqs = 4;
  limits.max_num_batched_tokens = 64;
  limits.max_model_len = kMaxModelLen;
  const auto count = [&](const KvArena& kv, int64_t bytes) {
    return CountBlocks(DeviceWith(bytes), limits, kv, /*graph_bytes=*/0, /*sharers=*/1);
  };
  const KvArena kv = ArenaOf({0, 100, 100, 100});
  const int64_t bytes = 1000 * kBlockBytes;
  const absl::StatusOr<std::vector<int32_t>> blocks = count(kv, bytes);
  ASSERT_TRUE(blocks.ok()) << blocks.status();
  ASSERT_EQ(blocks->size(), 2);
  // Windows need blocks for 100 positions of each of four sequences, and for the chunks of two
  // steps.
  EXPECT_EQ((*blocks)[1], 4 * (7 + 2) + 8);
  EXPECT_LE(kv.Bytes(*blocks), bytes);
  EXPECT_GT(kv.Bytes(*blocks), bytes - kBlockBytes * 4);

  const KvArena one = ArenaOf({0, 0});
  EXPECT_EQ(*count(one, 2 * 100 * kBlockBytes), std::vector<int32_t>{99});
  const absl::Status none = count(one, 2 * kBlockBytes).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(none.message()), HasSubstr("needed: at least two blocks of 16384"));
}

}  // namespace
}  // namespace millrace::cuda
