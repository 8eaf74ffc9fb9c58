// Tests how plans are packed and padded, without a GPU.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "executors/cuda/step_buffers.h"
#include "gtest/gtest.h"
#include "kernels/step/step_layout.h"

namespace millrace::cuda {
namespace {

using kernels::StepLayout;

constexpr int kSeqs = 4;  // and the padding slot's number
constexpr int32_t kLeft = -99;

StepLimits Limits() {
  StepLimits limits{};
  limits.max_num_seqs = kSeqs;
  limits.max_num_batched_tokens = 64;
  limits.max_model_len = 128;
  limits.num_blocks = {16};
  limits.state = StateLayout::OnePool(16);
  limits.vocab_size = 100;
  return limits;
}

// The parts of a packed step that say which tokens and logits it has.
struct Unpacked {
  std::vector<int32_t> row_first, row_start, row_slot, row_source, host_tokens, wanted_token,
      wanted_row;
};

class StepPackerTest : public ::testing::Test {
 protected:
  PackedPlan PackWords(const StepPlan& plan, const CudaStepInput& size, int lane = 0) {
    words_.assign(StepPacker::MaxWords(Limits()), kLeft);
    PackedPlan packed = packer_.Pack(plan, size, {words_.data(), words_.data(), lane});
    EXPECT_EQ(packed.step.words, words_.data());
    EXPECT_EQ(packed.step.counts.rows, size.rows);
    EXPECT_EQ(packed.step.tokens, size.tokens);
    EXPECT_EQ(packed.step.counts.wanted, size.wanted);
    EXPECT_EQ(packed.words, static_cast<size_t>(StepLayout(packed.step.counts).end));
    EXPECT_LE(packed.words, words_.size());
    // All of the step is written, and nothing behind it.
    EXPECT_EQ(std::find(words_.begin(), words_.end(), kLeft) - words_.begin(),
              static_cast<ptrdiff_t>(packed.words));
    return packed;
  }

  std::vector<int32_t> Take(int64_t first, int64_t count) const {
    return {words_.begin() + first, words_.begin() + first + count};
  }

  Unpacked Pack(const StepPlan& plan, const CudaStepInput& size) {
    const PackedPlan packed = PackWords(plan, size);
    const StepLayout at(packed.step.counts);
    for (const int32_t target : Take(at.wanted_target, size.wanted)) {
      EXPECT_EQ(target, StepLayout::kSample);
    }
    for (const int32_t mask : Take(at.wanted_mask, size.wanted)) {
      EXPECT_EQ(mask, StepLayout::kUnmasked);
    }
    return {.row_first = Take(at.row_first, size.rows + 1),
            .row_start = Take(at.row_start, size.rows),
            .row_slot = Take(at.row_slot, size.rows),
            .row_source = Take(at.row_source, size.rows),
            .host_tokens = Take(at.host_tokens, packed.step.counts.host_tokens),
            .wanted_token = Take(at.wanted_token, size.wanted),
            .wanted_row = Take(at.wanted_row, size.wanted)};
  }

  // A chunk of three tokens in slot 2, and a token that was sampled in slot 1; each has logits.
  static StepPlan Mixed() {
    StepPlan plan;
    plan.tokens = {7, 8, 9};
    plan.rows.push_back(
        {.slot = 2, .start = 16, .num_tokens = 3, .tokens = {0, 3}, .logits = {0, 1}});
    StepRow decodes{.slot = 1, .start = 5, .num_tokens = 1, .tokens = {3, 3}, .logits = {1, 2}};
    decodes.sampled_by = 1;
    plan.rows.push_back(decodes);
    plan.logits = {{.offset = 2}, {.offset = 0}};
    return plan;
  }

  static CudaStepInput Size(int rows, int tokens, int wanted) {
    CudaStepInput size;
    size.rows = rows;
    size.tokens = tokens;
    size.wanted = wanted;
    return size;
  }

  StepPacker packer_{Limits()};
  std::vector<int32_t> words_;
};

using Words = std::vector<int32_t>;
constexpr int32_t kSampled = StepLayout::kSampled;

TEST_F(StepPackerTest, APlansOwnSizeAddsNothing) {
  const StepPlan plan = Mixed();
  const CudaStepInput size = SizeOf(plan);
  EXPECT_EQ(size.rows, 2);
  EXPECT_EQ(size.tokens, 4);
  EXPECT_EQ(size.wanted, 2);
  EXPECT_EQ(size.max_row_tokens, 3);
  const Unpacked out = Pack(plan, size);
  EXPECT_EQ(out.row_first, (Words{0, 3, 4}));
  EXPECT_EQ(out.row_start, (Words{16, 5}));
  EXPECT_EQ(out.row_slot, (Words{2, 1}));
  EXPECT_EQ(out.row_source, (Words{0, kSampled}));
  EXPECT_EQ(out.host_tokens, (Words{7, 8, 9}));
  EXPECT_EQ(out.wanted_token, (Words{2, 3}));
  EXPECT_EQ(out.wanted_row, (Words{0, 1}));
}

// Missing tokens are rows of one, and missing logits theirs, the last one's repeatedly.
TEST_F(StepPackerTest, PaddingRowsComeBeforeEmptyOnes) {
  const Unpacked out = Pack(Mixed(), Size(6, 6, 5));
  EXPECT_EQ(out.row_first, (Words{0, 3, 4, 5, 6, 6, 6}));
  EXPECT_EQ(out.row_start, (Words{16, 5, 0, 0, 0, 0}));
  EXPECT_EQ(out.row_slot, (Words{2, 1, kSeqs, kSeqs, kSeqs, kSeqs}));
  EXPECT_EQ(out.row_source, (Words{0, kSampled, kSampled, kSampled, kSampled, kSampled}));
  EXPECT_EQ(out.wanted_token, (Words{2, 3, 4, 5, 5}));
  EXPECT_EQ(out.wanted_row, (Words{0, 1, 2, 3, 3}));
}

// The padding slot samples, so that no sequence's token changes.
TEST_F(StepPackerTest, WithoutPaddingTokensAnEmptyRowSamples) {
  const Unpacked out = Pack(Mixed(), Size(4, 4, 4));
  EXPECT_EQ(out.row_first, (Words{0, 3, 4, 4, 4}));
  EXPECT_EQ(out.wanted_token, (Words{2, 3, 3, 3}));
  EXPECT_EQ(out.wanted_row, (Words{0, 1, 2, 2}));
  EXPECT_EQ(out.row_slot[2], kSeqs);
}

TEST_F(StepPackerTest, AGraphsBatchIsFilledWithRowsOfTheirOwn) {
  const Unpacked out = Pack({}, Size(4, 4, 4));
  EXPECT_EQ(out.row_first, (Words{0, 1, 2, 3, 4}));
  EXPECT_EQ(out.row_slot, (Words{kSeqs, kSeqs, kSeqs, kSeqs}));
  EXPECT_EQ(out.wanted_token, (Words{0, 1, 2, 3}));
  EXPECT_EQ(out.wanted_row, (Words{0, 1, 2, 3}));
}

TEST_F(StepPackerTest, AStepMayWantNothing) {
  StepPlan plan = Mixed();
  plan.logits.clear();
  for (StepRow& row : plan.rows) row.logits = {0, 0};
  const Unpacked out = Pack(plan, Size(kSeqs + kMaxPaddingRows, 64, 0));
  EXPECT_EQ(out.row_first[2], 4);
  EXPECT_EQ(out.row_first[62], 64);
  EXPECT_EQ(out.row_first.back(), 64);
}

// A step brings more than rows and logits: copies, masks, targets, blocks, and the state of slots
// that start.
TEST_F(StepPackerTest, EveryArrayLiesWhereTheLayoutSays) {
  StepPlan plan = Mixed();
  plan.moves = {{.from = {.block = 3}, .to = {.block = 4}},
                {.from = {.block = 5}, .to = {.block = 6}}};
  plan.blocks = {10, 11, 12};
  plan.rows[0].blocks = {0, 2};
  plan.rows[1].blocks = {2, 3};
  plan.logits[0].target = 42;
  plan.logits[1].mask = std::make_shared<const SampleMask>(SampleMask{1});
  plan.history = {21, 22};
  SamplingParams sampling;
  sampling.temperature = 0.5f;
  sampling.banned_tokens = {30, 31};
  sampling.logit_bias = {{.token = 32, .bias = 1.5f}};
  sampling.top_logprobs = 4;
  plan.starts = {{.slot = 2,
                  .sampling = std::make_shared<const SamplingParams>(sampling),
                  .history = {0, 2},
                  .prompt_tokens = 19}};
  const PackedPlan packed = PackWords(plan, SizeOf(plan), /*lane=*/1);
  const StepLayout at(packed.step.counts);
  EXPECT_EQ(Take(at.copies, 4), (Words{3, 4, 5, 6}));
  EXPECT_EQ(Take(at.row_first, 3), (Words{0, 3, 4}));
  EXPECT_EQ(Take(at.wanted_target, 2), (Words{42, StepLayout::kSample}));
  // The second lane's masks lie behind the first one's.
  EXPECT_EQ(Take(at.wanted_mask, 2), (Words{StepLayout::kUnmasked, kSeqs}));
  EXPECT_EQ(packed.masks, 1);
  EXPECT_FALSE(packed.late_masks);
  EXPECT_TRUE(packed.tops);
  EXPECT_EQ(packed.step.mask_set, 1);
  EXPECT_EQ(Take(at.appends, 9), (Words{2, 0, 10, 2, 1, 11, 1, 0, 12}));
  EXPECT_EQ(Take(at.biases, 12),
            (Words{2, 0, 30, 0, 2, 1, 31, 0, 2, 2, 32, std::bit_cast<int32_t>(1.5f)}));
  EXPECT_EQ(Take(at.history, 6), (Words{2, 0, 21, 2, 1, 22}));
  EXPECT_EQ(Take(at.start_slots, 1), (Words{2}));
  kernels::SlotSampling on_device;
  std::memcpy(&on_device, words_.data() + at.starts, sizeof(on_device));
  EXPECT_EQ(on_device.temperature, 0.5f);
  EXPECT_EQ(on_device.prompt_length, 19);
  EXPECT_EQ(on_device.num_banned, 2);
  EXPECT_EQ(on_device.num_biases, 1);
  EXPECT_EQ(on_device.top_logprobs, 4);
  EXPECT_EQ(packer_.TopLogprobs(2), 4);
}

// A slot's blocks are numbered on from those of earlier steps, until it starts anew.
TEST_F(StepPackerTest, BlocksAreAppendedBehindEarlierOnes) {
  StepPlan plan = Mixed();
  plan.blocks = {10, 11};
  plan.rows[0].blocks = {0, 2};
  PackWords(plan, SizeOf(plan));
  StepPlan next = Mixed();
  next.blocks = {12};
  next.rows[0].blocks = {0, 1};
  const PackedPlan packed = PackWords(next, SizeOf(next));
  EXPECT_EQ(Take(StepLayout(packed.step.counts).appends, 3), (Words{2, 2, 12}));
  next.starts = {{.slot = 2, .sampling = std::make_shared<const SamplingParams>()}};
  const PackedPlan anew = PackWords(next, SizeOf(next));
  EXPECT_EQ(Take(StepLayout(anew.step.counts).appends, 3), (Words{2, 0, 12}));
}

// The limits of layers without a window, and of some with one of 20 positions.
StepLimits GroupedLimits() {
  StepLimits limits = Limits();
  limits.num_blocks = {16, 8};
  limits.state = {.block_size = 16, .groups = {PagedState{}, PagedState{.window = 20}}};
  return limits;
}

// The device's block tables, as the kernel that expands a step writes them.
class GroupedPackerTest : public ::testing::Test {
 protected:
  static constexpr int kStride = 8;  // blocks of a sequence

  GroupedPackerTest() {
    buffers_.arrays.block_tables = tables_.data();
    buffers_.arrays.table_stride = kStride;
    buffers_.slots = kSeqs + 1;
  }

  // Packs a plan and applies what it appends. Returns where its arrays lie.
  StepLayout Apply(const StepPlan& plan) {
    words_.assign(StepPacker::MaxWords(GroupedLimits()), kLeft);
    const PackedPlan packed = packer_.Pack(plan, SizeOf(plan), {words_.data(), words_.data(), 0});
    EXPECT_EQ(std::find(words_.begin(), words_.end(), kLeft) - words_.begin(),
              static_cast<ptrdiff_t>(packed.words));
    const StepLayout at(packed.step.counts);
    for (int i = 0; i < packed.step.counts.appends; ++i) {
      const int32_t* const append = words_.data() + at.appends + kernels::kAppendWords * i;
      tables_[append[0] * kStride + append[1]] = append[2];
    }
    return at;
  }

  // Returns the first blocks of a slot's table, as the kernels of a group's layers find them.
  std::vector<int32_t> Table(int group, SlotId slot, int count) const {
    const kernels::BlockTables tables = buffers_.tables(group);
    const int32_t* const first = tables.blocks + slot * tables.stride;
    return {first, first + count};
  }

  std::vector<int32_t> tables_ = std::vector<int32_t>(2 * (kSeqs + 1) * kStride, kLeft);
  StepBuffers buffers_;
  StepPacker packer_{GroupedLimits()};
  std::vector<int32_t> words_;
};

TEST_F(GroupedPackerTest, EachGroupHasATable) {
  StepPlan plan;
  plan.tokens = {7, 8};
  plan.blocks = {10, 11, 2, 3, 12, 4};  // two of each group for a row, then one of each
  plan.rows = {{.slot = 3, .start = 0, .num_tokens = 1, .tokens = {0, 1}, .blocks = {0, 4}},
               {.slot = 0, .start = 0, .num_tokens = 1, .tokens = {1, 2}, .blocks = {4, 6}}};
  Apply(plan);
  EXPECT_EQ(Table(0, 3, 3), (Words{10, 11, kLeft}));
  EXPECT_EQ(Table(1, 3, 3), (Words{2, 3, kLeft}));
  EXPECT_EQ(Table(0, 0, 2), (Words{12, kLeft}));
  EXPECT_EQ(Table(1, 0, 2), (Words{4, kLeft}));
  // The padding slot's, which its block is in, are nobody else's.
  EXPECT_EQ(Table(0, kSeqs, 1), (Words{kLeft}));
  EXPECT_EQ(Table(1, kSeqs, 1), (Words{kLeft}));

  StepPlan next;
  next.tokens = {9};
  next.blocks = {13, 5};
  next.rows = {{.slot = 3, .start = 1, .num_tokens = 1, .tokens = {0, 1}, .blocks = {0, 2}}};
  Apply(next);
  EXPECT_EQ(Table(0, 3, 3), (Words{10, 11, 13}));
  EXPECT_EQ(Table(1, 3, 3), (Words{2, 3, 5}));
}

// No kernel reads the places before a window, yet they hold a block's number.
TEST_F(GroupedPackerTest, MissingBlocksAreBlockZero) {
  StepPlan plan;
  plan.tokens = {7};
  plan.blocks = {10, 11, 12, kNoBlock, kNoBlock, 6};
  plan.rows = {{.slot = 1, .start = 47, .num_tokens = 1, .tokens = {0, 1}, .blocks = {0, 6}}};
  plan.starts = {{.slot = 1, .sampling = std::make_shared<const SamplingParams>()}};
  Apply(plan);
  EXPECT_EQ(Table(0, 1, 3), (Words{10, 11, 12}));
  EXPECT_EQ(Table(1, 1, 3), (Words{0, 0, 6}));
}

TEST_F(GroupedPackerTest, CopiesOfAGroupLieTogether) {
  StepPlan plan;
  plan.moves = {{.group = 1, .from = {.block = 1}, .to = {.block = 2}},
                {.group = 0, .from = {.block = 3}, .to = {.block = 4}},
                {.group = 1, .from = {.block = 5}, .to = {.block = 6}}};
  const StepLayout at = Apply(plan);
  EXPECT_EQ((Words{words_.begin() + at.copies, words_.begin() + at.copies + 6}),
            (Words{3, 4, 1, 2, 5, 6}));
}

// Groups of slots have no tables. Of their places those behind the slots make room for padding
// rows.
TEST(StatePackerTest, CheckpointsLieBehindThePlaceOfPadding) {
  StepLimits limits = Limits();
  limits.num_blocks = {16, 3};
  limits.state = {.block_size = 16, .groups = {PagedState{}, SlotState{.bytes = 64}}};
  StepPlan plan;
  plan.tokens = {7};
  plan.blocks = {10, 11};
  plan.rows = {{.slot = 3, .start = 0, .num_tokens = 1, .tokens = {0, 1}, .blocks = {0, 2}}};
  plan.moves = {{.group = 1, .from = {.block = 0}, .to = {.block = kSeqs + 2}},
                {.group = 0, .from = {.block = 5}, .to = {.block = 6}},
                {.group = 1, .from = {.block = kSeqs}, .to = {.block = kSeqs - 1}}};
  std::vector<int32_t> words(StepPacker::MaxWords(limits), kLeft);
  StepPacker packer(limits);
  const PackedPlan packed = packer.Pack(plan, SizeOf(plan), {words.data(), words.data(), 0});
  const StepLayout at(packed.step.counts);
  const auto take = [&](int64_t first, int64_t count) {
    return std::vector<int32_t>(words.begin() + first, words.begin() + first + count);
  };
  EXPECT_EQ(take(at.copies, 6), (std::vector<int32_t>{5, 6, 0, kSeqs + 3, kSeqs + 1, kSeqs - 1}));
  ASSERT_EQ(packed.step.counts.appends, 2);
  EXPECT_EQ(take(at.appends, 6), (std::vector<int32_t>{3, 0, 10, 3, 1, 11}));
}

// Every slot may fork, and have all its blocks sent, in both groups at once.
TEST_F(GroupedPackerTest, TheLargestPlanFits) {
  const StepLayout one({.appends = kSeqs * kStride});
  const StepLayout none({});
  EXPECT_EQ(StepPacker::MaxWords(GroupedLimits()) - StepPacker::MaxWords(Limits()),
            static_cast<size_t>(one.end - none.end) + kernels::kCopyWords * kSeqs);
}

}  // namespace
}  // namespace millrace::cuda
