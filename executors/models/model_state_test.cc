#include "executors/models/model_state.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "gtest/gtest.h"

namespace millrace {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// `layers` layers, of which each `whole_every`th sees all, and the others a window.
ModelConfig Config(int layers, int whole_every, int window, int heads, int kv_heads,
                   int head_size) {
  ModelConfig config;
  for (int i = 0; i < layers; ++i) {
    LayerConfig& layer = config.layers.emplace_back();
    layer.attention = SoftmaxAttention{.heads = heads,
                                       .kv_heads = kv_heads,
                                       .head_size = head_size,
                                       .scale = 1,
                                       .window = (i + 1) % whole_every == 0 ? 0 : window};
  }
  return config;
}

ModelConfig GptOss20b() { return Config(24, 2, 128, 64, 8, 64); }
ModelConfig Gemma3Of4b() { return Config(34, 6, 1024, 8, 4, 256); }
ModelConfig Gemma3Of27b() { return Config(62, 6, 1024, 32, 16, 128); }

PageSpec Halves(int32_t release_below) {
  return {.block_size = 16, .element_bytes = 2, .release_below = release_below};
}

TEST(ModelStateTest, LayersOfAWindowShareAGroup) {
  const ModelState state = StateOf(GptOss20b(), RankSpec(), Halves(32768));
  constexpr int64_t kLayer = 2 * 16 * 8 * 64 * 2;
  ASSERT_EQ(state.layout.num_groups(), 2);
  EXPECT_EQ(state.layout.block_size, 16);
  EXPECT_EQ(state.layout.Paged(0)->window, std::nullopt);
  EXPECT_EQ(state.layout.Paged(0)->block_bytes, 12 * kLayer);
  EXPECT_EQ(state.layout.Paged(1)->window, 128);
  EXPECT_EQ(state.layout.Paged(1)->block_bytes, 12 * kLayer);
  for (int layer = 0; layer < 24; ++layer) {
    const LayerPlacement& placement = state.placements[layer];
    EXPECT_EQ(placement.group, layer % 2 == 0 ? 1 : 0) << layer;
    EXPECT_EQ(placement.index, layer / 2) << layer;
    EXPECT_EQ(placement.offset, layer / 2 * kLayer) << layer;
  }
}

// Qwen3.5-27B's: 64 layers, of which every fourth has pages.
TEST(ModelStateTest, RecurrentLayersShareTheLastGroup) {
  ModelConfig config = Config(64, 4, 0, 24, 4, 256);
  const GatedDelta delta{.key_heads = 16, .value_heads = 48, .key_size = 128, .value_size = 128};
  for (int i = 0; i < 64; ++i) {
    if ((i + 1) % 4 != 0) config.layers[i].attention = delta;
  }
  const ModelState state = StateOf(config, RankSpec(), Halves(32768));
  ASSERT_EQ(state.layout.num_groups(), 2);
  EXPECT_EQ(state.layout.Paged(0)->block_bytes, int64_t{16} * 2 * 16 * 4 * 256 * 2);
  constexpr int64_t kLayer = 4 * (3 * (2 * 16 + 48) * 128 + 48 * 128 * 128);
  EXPECT_EQ(std::get<SlotState>(state.layout.groups[1]).bytes, 48 * kLayer);
  EXPECT_EQ(state.placements[3].group, 0);
  EXPECT_EQ(state.placements[4].group, 1);
  EXPECT_EQ(state.placements[4].index, 3);
  EXPECT_EQ(state.placements[4].offset, 3 * kLayer);
  // A rank of 32 has half of a key head's value heads.
  const ModelState of_rank = StateOf(config, {.rank = 5, .size = 32}, Halves(32768));
  EXPECT_EQ(std::get<SlotState>(of_rank.layout.groups[1]).bytes,
            48 * 4 * (3 * (2 + 2) * 128 + 2 * 128 * 128));
  // The GPU keeps keys, changes and decays of seven tokens, filled up to 16 bytes.
  const ModelState on_gpu = StateOf(config, RankSpec(), CudaPages(16, false, 32768));
  constexpr int64_t kKept = 4 * 7 * (16 * 128 + 48 * (128 + 1));
  EXPECT_EQ(std::get<SlotState>(on_gpu.layout.groups[1]).bytes, 48 * (kLayer + kKept));
  const GatedDelta odd{.key_heads = 1, .value_heads = 1, .key_size = 128, .value_size = 128};
  EXPECT_EQ(GatedDeltaState(odd, 8).kept, 7 * (128 + 128 + 1) + 1);
}

// LFM2-1.2B's: 16 layers, of which six have pages.
TEST(ModelStateTest, ShortConvolutionsKeepInputsAlone) {
  ModelConfig config = Config(16, 3, 0, 32, 8, 64);
  for (const int layer : {0, 1, 3, 4, 6, 7, 9, 11, 13, 15}) {
    config.layers[layer].attention = ShortConvolution{.channels = 2048, .width = 3};
  }
  const ModelState state = StateOf(config, RankSpec(), Halves(32768));
  ASSERT_EQ(state.layout.num_groups(), 2);
  EXPECT_EQ(state.layout.Paged(0)->block_bytes, int64_t{6} * 2 * 16 * 8 * 64 * 2);
  constexpr int64_t kLayer = 4 * 2 * 2048;
  EXPECT_EQ(std::get<SlotState>(state.layout.groups[1]).bytes, 10 * kLayer);
  EXPECT_EQ(state.placements[15].offset, 9 * kLayer);
  const ModelState of_rank = StateOf(config, {.rank = 3, .size = 4}, Halves(32768));
  EXPECT_EQ(std::get<SlotState>(of_rank.layout.groups[1]).bytes, 10 * kLayer / 4);
}

// Granite-4.0-H-Micro's: 40 layers, of which four have pages.
TEST(ModelStateTest, Mamba2KeepsInputsAndAStateForEachHead) {
  ModelConfig config = Config(40, 3, 0, 32, 8, 64);
  const Mamba2 mixer{.heads = 64, .head_size = 64, .groups = 1, .state_size = 128, .width = 4};
  for (int i = 0; i < 40; ++i) {
    if (i % 10 != 5) config.layers[i].attention = mixer;
  }
  const ModelState state = StateOf(config, RankSpec(), Halves(32768));
  ASSERT_EQ(state.layout.num_groups(), 2);
  constexpr int64_t kLayer = 4 * (3 * (64 * 64 + 2 * 128) + 64 * 64 * 128);
  EXPECT_EQ(std::get<SlotState>(state.layout.groups[1]).bytes, 36 * kLayer);
  EXPECT_EQ(state.placements[39].offset, 35 * kLayer);
  // Each rank of four has the group's b and c, and a quarter of the heads that read them.
  const ModelState of_rank = StateOf(config, {.rank = 3, .size = 4}, Halves(32768));
  EXPECT_EQ(std::get<SlotState>(of_rank.layout.groups[1]).bytes,
            36 * 4 * (3 * (16 * 64 + 2 * 128) + 16 * 64 * 128));
}

// Nemotron-3-Nano's: of 52 layers 23 are Mamba-2 mixers, six have pages, and 23 are mixtures alone.
TEST(ModelStateTest, ALayerWithoutAMixerHasNoState) {
  constexpr std::string_view kPattern = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";
  ModelConfig config = Config(static_cast<int>(kPattern.size()), 3, 0, 32, 2, 128);
  const Mamba2 mixer{.heads = 64, .head_size = 64, .groups = 8, .state_size = 128, .width = 4};
  for (size_t i = 0; i < kPattern.size(); ++i) {
    if (kPattern[i] == 'M') config.layers[i].attention = mixer;
    if (kPattern[i] == 'E') config.layers[i].attention = Absent();
  }
  const ModelState state = StateOf(config, RankSpec(), Halves(262144));
  ASSERT_EQ(state.layout.num_groups(), 2);
  EXPECT_EQ(state.layout.Paged(0)->block_bytes, 6 * 2 * 2 * 16 * 2 * 128);
  constexpr int64_t kLayer = 4 * (3 * (64 * 64 + 2 * 8 * 128) + 64 * 64 * 128);
  EXPECT_EQ(std::get<SlotState>(state.layout.groups[1]).bytes, 23 * kLayer);
  EXPECT_EQ(state.placements[1].group, kNoGroup);
  EXPECT_EQ(state.placements[2].offset, kLayer);
}

TEST(ModelStateTest, ADeviceThatReleasesNothingHasOneGroup) {
  const ModelState state = StateOf(GptOss20b(), RankSpec(), Halves(0));
  ASSERT_EQ(state.layout.num_groups(), 1);
  EXPECT_EQ(state.layout.Paged(0)->window, std::nullopt);
  EXPECT_EQ(state.placements[23].index, 23);
}

TEST(ModelStateTest, AWindowAsLongAsSequencesIsNone) {
  EXPECT_EQ(StateOf(GptOss20b(), RankSpec(), Halves(128)).layout.num_groups(), 1);
  EXPECT_EQ(StateOf(GptOss20b(), RankSpec(), Halves(129)).layout.num_groups(), 2);
}

TEST(ModelStateTest, EmbeddingsReleaseNothing) {
  ModelConfig config = GptOss20b();
  config.pooler = PoolerConfig();
  EXPECT_EQ(StateOf(config, RankSpec(), Halves(32768)).layout.num_groups(), 1);
}

TEST(ModelStateTest, LayersHaveHeadsOfTheirOwn) {
  ModelConfig config = Config(4, 2, 64, 8, 4, 32);
  config.layers[1].softmax().kv_heads = 2;
  config.layers[1].softmax().head_size = 72;
  config.layers[2].softmax().head_size = 40;
  const ModelState state =
      StateOf(config, RankSpec(),
              {.block_size = 32, .element_bytes = 4, .head_multiple = 16, .release_below = 1024});
  constexpr int64_t kHead = 2 * 32 * 4;  // of one element
  EXPECT_EQ(state.layout.Paged(0)->block_bytes, kHead * (2 * 80 + 4 * 32));
  EXPECT_EQ(state.placements[3].offset, kHead * 2 * 80);
  EXPECT_EQ(state.layout.Paged(1)->block_bytes, kHead * (4 * 32 + 4 * 48));
  EXPECT_EQ(state.placements[2].offset, kHead * 4 * 32);
}

// Where there are more ranks than kv heads, each holds one.
TEST(ModelStateTest, EveryRankHasAHead) {
  const ModelConfig config = Config(2, 1, 0, 32, 4, 64);
  constexpr int64_t kHead = 2 * 2 * 16 * 64 * 2;  // of both layers
  const int64_t expected[] = {4, 2, 2, 1, 1, 1, 1, 1};
  for (int size = 1; size <= 8; ++size) {
    for (int rank = 0; rank < size; ++rank) {
      const ModelState state = StateOf(config, {.rank = rank, .size = size}, Halves(0));
      EXPECT_EQ(state.layout.Paged(0)->block_bytes, kHead * expected[size - 1]) << size;
    }
  }
}

// Returns how many times the context of one pool is held, in sequences of 32768 tokens.
double Gain(const ModelConfig& config, int64_t bytes, const StateUse& use) {
  constexpr int32_t kLength = 32768;
  const StateLayout one = StateOf(config, RankSpec(), Halves(0)).layout;
  const StateLayout two = StateOf(config, RankSpec(), Halves(use.max_model_len)).layout;
  const std::vector<int32_t> blocks = DivideState(two, bytes, use);
  EXPECT_LE(BytesOfBlocks(two, blocks), bytes);
  // The windows of the sequences that fit whole are there, and what passes through them.
  const double sequences = 1.0 * blocks[0] / two.BlocksFor(kLength);
  EXPECT_GE(blocks[1], sequences * (two.BlocksFor(*two.Paged(1)->window) + 2) +
                           two.BlocksFor(2 * use.max_num_batched_tokens));
  return 1.0 * blocks[0] / DivideState(one, bytes, use)[0];
}

TEST(DivideStateTest, LongContextsTakeTheirWindowsOnly) {
  // The memory is what gpt-oss-20b leaves of a GPU of 80 GB and Gemma 3 27B of one of 141 GB, with
  // large steps, and a CPU's 8 GiB with small ones. Sequences are the longest that the models have
  // been trained for, and of 32768.
  for (const int32_t max_model_len : {32768, 131072}) {
    const StateUse gpu{
        .max_num_seqs = 256, .max_num_batched_tokens = 8192, .max_model_len = max_model_len};
    const StateUse cpu{
        .max_num_seqs = 256, .max_num_batched_tokens = 2048, .max_model_len = max_model_len};
    EXPECT_GE(Gain(GptOss20b(), 40 * kGiB, gpu), 1.9);
    EXPECT_GE(Gain(GptOss20b(), 8 * kGiB, cpu), 1.9);
    EXPECT_GE(Gain(Gemma3Of4b(), 40 * kGiB, gpu), 4);
    EXPECT_GE(Gain(Gemma3Of4b(), 8 * kGiB, cpu), 4);
    EXPECT_GE(Gain(Gemma3Of27b(), 72 * kGiB, gpu), 3.8);
  }
}

// A split for long contexts costs some short sequences, whose windows are most of what they have:
// at most a third of what one pool holds.
TEST(DivideStateTest, TypicalLengthsLoseLittle) {
  const StateUse use{.max_num_seqs = 256, .max_num_batched_tokens = 2048, .max_model_len = 131072};
  for (const ModelConfig& config : {GptOss20b(), Gemma3Of4b()}) {
    const StateLayout one = StateOf(config, RankSpec(), Halves(0)).layout;
    const StateLayout two = StateOf(config, RankSpec(), Halves(131072)).layout;
    const std::vector<int32_t> blocks = DivideState(two, 40 * kGiB, use);
    const int32_t in_one_pool = DivideState(one, 40 * kGiB, use)[0];
    for (const int32_t length : {2048, 4096, 8192}) {
      const int32_t whole = two.BlocksFor(length);
      const int32_t window = two.BlocksFor(*two.Paged(1)->window) + 2;
      const int32_t passing = two.BlocksFor(2 * use.max_num_batched_tokens);
      const int32_t sequences = std::min({256, blocks[0] / whole, (blocks[1] - passing) / window});
      EXPECT_GE(sequences, std::min(256, in_one_pool / whole) * 2 / 3) << length;
    }
  }
}

TEST(DivideStateTest, OnePoolGetsAll) {
  const StateUse use{.max_num_seqs = 4, .max_num_batched_tokens = 64, .max_model_len = 1024};
  EXPECT_EQ(DivideState(StateLayout::OnePool(16, 1000), 12345, use), std::vector<int32_t>{12});
  EXPECT_EQ(DivideState(StateLayout::OnePool(16, 1000), 999, use), std::vector<int32_t>{0});
  const StateLayout windowed{.block_size = 16,
                             .groups = {PagedState{.block_bytes = 1000, .window = 64}}};
  EXPECT_EQ(DivideState(windowed, 500500, use), std::vector<int32_t>{500});
}

TEST(DivideStateTest, SlotsComeFirst) {
  const StateUse use{.max_num_seqs = 4, .max_num_batched_tokens = 64, .max_model_len = 1024};
  const StateLayout layout{.block_size = 16,
                           .groups = {SlotState{.bytes = 500}, PagedState{.block_bytes = 1000}}};
  EXPECT_EQ(DivideState(layout, 12345, use), (std::vector<int32_t>{0, 10}));
  EXPECT_EQ(DivideState(layout, 2999, use), (std::vector<int32_t>{0, 0}));
  // Checkpoints have a memory of their own.
  StateUse with_checkpoints = use;
  with_checkpoints.checkpoint_bytes = 3700;
  EXPECT_EQ(DivideState(layout, 12345, with_checkpoints), (std::vector<int32_t>{7, 10}));
}

// For memories of every size: what is given fits, one sequence of max_model_len has its blocks if
// that is possible at all, no window has more than whole contexts have, and more memory never makes
// less context.
TEST(DivideStateTest, HoldsOneSequenceWheneverMemoryDoes) {
  for (const int32_t window : {20, 100, 700}) {
    for (const int32_t step : {16, 256, 4096}) {
      for (const int32_t length : {64, 1000, 5000}) {
        const StateUse use{
            .max_num_seqs = 8, .max_num_batched_tokens = step, .max_model_len = length};
        const StateLayout layout{.block_size = 16,
                                 .groups = {PagedState{.block_bytes = 300},
                                            PagedState{.block_bytes = 1100, .window = window}}};
        const int32_t whole = layout.BlocksFor(length);
        const int32_t windowed = layout.BlocksAtOnce(1, length);
        const int64_t needed = int64_t{300} * whole + int64_t{1100} * windowed;
        for (int64_t bytes = 1400; bytes < 6 * needed; bytes += 1 + needed / 50) {
          const std::vector<int32_t> blocks = DivideState(layout, bytes, use);
          ASSERT_LE(BytesOfBlocks(layout, blocks), bytes);
          ASSERT_GE(*std::min_element(blocks.begin(), blocks.end()), 1);
          if (bytes < needed) continue;
          ASSERT_GE(blocks[0], whole) << window << " " << step << " " << length << " " << bytes;
          ASSERT_GE(blocks[1], windowed) << window << " " << step << " " << length << " " << bytes;
          ASSERT_LE(blocks[1], std::max(blocks[0], windowed));
        }
      }
    }
  }
}

// The chunks of two large steps may leave more in a window than a small memory has. They are cut
// there, and the context gets what the windows of one sequence leave.
TEST(DivideStateTest, ASmallMemoryIsNotForLargeSteps) {
  const StateUse use{.max_num_seqs = 256, .max_num_batched_tokens = 2048, .max_model_len = 131072};
  const StateLayout layout = StateOf(Gemma3Of4b(), RankSpec(), Halves(131072)).layout;
  const std::vector<int32_t> blocks = DivideState(layout, kGiB / 2, use);
  EXPECT_LE(BytesOfBlocks(layout, blocks), kGiB / 2);
  EXPECT_GE(blocks[0] * layout.block_size, 16384);
  EXPECT_GE(blocks[1], layout.BlocksAtOnce(1, use.max_model_len) + layout.BlocksFor(256));
}

TEST(DivideStateTest, WindowsAloneAreBalanced) {
  const StateUse use{.max_num_seqs = 64, .max_num_batched_tokens = 256, .max_model_len = 32768};
  const StateLayout layout{.block_size = 16,
                           .groups = {PagedState{.block_bytes = 1000, .window = 128},
                                      PagedState{.block_bytes = 1000, .window = 1024}}};
  const std::vector<int32_t> blocks = DivideState(layout, 2000000, use);
  EXPECT_LE(BytesOfBlocks(layout, blocks), 2000000);
  // As many sequences fit the one as the other: 10 blocks and 66 each.
  EXPECT_NEAR((blocks[0] - 32) / 10.0, (blocks[1] - 32) / 66.0, 1);
}

TEST(ModelStateTest, RanksTogetherHaveAsMuchEach) {
  const StateLayout layout{.block_size = 16,
                           .groups = {PagedState{.block_bytes = 10, .window = 64},
                                      SlotState{.bytes = 7}, PagedState{.block_bytes = 20}}};
  const StateLayout all = Together(layout, 3);
  EXPECT_EQ(all.Paged(0)->block_bytes, 30);
  EXPECT_EQ(all.Paged(0)->window, 64);
  EXPECT_EQ(std::get<SlotState>(all.groups[1]).bytes, 21);
  EXPECT_EQ(BytesOfABlockEach(all), 90);
  EXPECT_EQ(BytesOfBlocks(all, {2, 0, 3}), 2 * 30 + 3 * 60);
}

TEST(DivideStateTest, MostBytesHoldAllSequences) {
  const StateLayout layout = StateOf(GptOss20b(), RankSpec(), Halves(32768)).layout;
  const StateUse use{.max_num_seqs = 8, .max_num_batched_tokens = 2048, .max_model_len = 32768};
  const std::vector<int32_t> blocks = DivideState(layout, MostStateBytes(layout, use), use);
  EXPECT_GE(blocks[0], 8 * 2048);
  EXPECT_GE(blocks[1], 8 * 10 + 256);
}

TEST(DivisionTextTest, NamesEachGroup) {
  EXPECT_EQ(DivisionText(StateLayout::OnePool(16), {1000}), "1000 KV blocks of 16 tokens");
  const StateLayout layout = StateOf(GptOss20b(), RankSpec(), Halves(32768)).layout;
  EXPECT_EQ(DivisionText(layout, {1000, 50}),
            "1000 KV blocks of 16 tokens, and 50 for windows of 128");
  const StateLayout slots{.block_size = 16, .groups = {SlotState{.bytes = 500}, PagedState()}};
  EXPECT_EQ(DivisionText(slots, {3, 10}),
            "500 bytes for each sequence and each of 3 checkpoints, and 10 KV blocks of 16 tokens");
}

}  // namespace
}  // namespace millrace
