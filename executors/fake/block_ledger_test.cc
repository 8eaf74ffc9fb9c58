#include "executors/fake/block_ledger.h"

#include <numeric>
#include <string>
#include <vector>

#include "base/strings.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

const StepLimits kLimits = {.max_num_seqs = 4,
                            .max_num_batched_tokens = 64,
                            .max_model_len = 64,
                            .num_blocks = {10},
                            .state = StateLayout::OnePool(16),
                            .vocab_size = 100};

// Whole contexts, and a window of 20 positions: position 36 reads those from 17 on.
const StepLimits kWindow = {
    .max_num_seqs = 4,
    .max_num_batched_tokens = 64,
    .max_model_len = 64,
    .num_blocks = {10, 6},
    .state = {.block_size = 16, .groups = {PagedState(), PagedState{.window = 20}}},
    .vocab_size = 100};

struct Row {
  SlotId slot;
  int32_t start;
  int32_t num_tokens;
  std::vector<BlockId> blocks;
  bool fresh = false;
};

StepPlan Plan(const std::vector<Row>& rows) {
  StepPlan plan;
  for (const Row& row : rows) {
    if (row.fresh) plan.starts.push_back({row.slot, std::make_shared<SamplingParams>()});
    const int32_t begin = static_cast<int32_t>(plan.blocks.size());
    plan.blocks.insert(plan.blocks.end(), row.blocks.begin(), row.blocks.end());
    plan.rows.push_back({.slot = row.slot,
                         .start = row.start,
                         .num_tokens = row.num_tokens,
                         .blocks = {begin, static_cast<int32_t>(plan.blocks.size())}});
  }
  return plan;
}

class LedgerTest : public ::testing::Test {
 protected:
  explicit LedgerTest(const StepLimits& limits) : ledger_(limits) {}

  void Ok(const std::vector<Row>& rows) {
    const absl::Status status = ledger_.Apply(Plan(rows));
    EXPECT_TRUE(status.ok()) << status;
  }
  void Broken(const std::vector<Row>& rows, const std::string& named) {
    EXPECT_THAT(std::string(ledger_.Apply(Plan(rows)).message()), HasSubstr(named));
  }
  BlockLedger ledger_;
};

class BlockLedgerTest : public LedgerTest {
 protected:
  BlockLedgerTest() : LedgerTest(kLimits) {}
};

TEST_F(BlockLedgerTest, TakesSharedFullBlocksAndReuse) {
  Ok({{0, 0, 20, {1, 2}, true}});
  Ok({{0, 20, 1, {}}, {1, 16, 4, {1, 3}, true}});  // block 1 is full, so both may read it
  Ok({{0, 21, 1, {}}, {1, 20, 1, {}}});
  Ok({{2, 0, 20, {4, 5}, true}, {1, 21, 1, {}}});
  // Slot 0's sequence has ended; its block 2 is reused elsewhere.
  Ok({{3, 0, 5, {2}, true}});
}

TEST_F(BlockLedgerTest, SeesABlockTwiceInATable) {
  Broken({{0, 0, 20, {1, 1}, true}}, "rows[0]: appends block 1, which its table holds already");
}

TEST_F(BlockLedgerTest, SeesReadsOfWhatWasNeverWritten) {
  Broken({{0, 16, 4, {1, 2}, true}}, "block 1 holds 0 tokens, but the row reads 16");
}

TEST_F(BlockLedgerTest, SeesABlockThatWasGivenAway) {
  Ok({{0, 0, 20, {1, 2}, true}});
  Ok({{1, 0, 4, {1}, true}});
  Broken({{0, 20, 1, {}}}, "block 1, which holds its tokens from 0, was given to another sequence");
}

TEST(LongLedgerTest, LooksAtAllBlocksOfALongSequenceInTurn) {
  constexpr int32_t kBlocks = BlockLedger::kMostReads + 100;
  BlockLedger ledger({.max_num_seqs = 2,
                      .max_num_batched_tokens = kBlocks,
                      .max_model_len = kBlocks + 8,
                      .num_blocks = {kBlocks + 8},
                      .state = StateLayout::OnePool(1),
                      .vocab_size = 100});
  std::vector<BlockId> blocks(kBlocks);
  std::iota(blocks.begin(), blocks.end(), 0);
  EXPECT_TRUE(ledger.Apply(Plan({{0, 0, kBlocks, blocks, true}})).ok());
  const BlockId given_away = kBlocks - 50;
  EXPECT_TRUE(ledger.Apply(Plan({{1, 0, 1, {given_away}, true}})).ok());
  EXPECT_TRUE(ledger.Apply(Plan({{0, kBlocks, 1, {kBlocks}}})).ok());
  EXPECT_THAT(std::string(ledger.Apply(Plan({{0, kBlocks + 1, 1, {kBlocks + 1}}})).message()),
              HasSubstr(StrCat("block ", given_away, ", ")));
}

TEST_F(BlockLedgerTest, SeesTwoWritersOfABlock) {
  Ok({{0, 0, 20, {1, 2}, true}});
  Broken({{1, 20, 1, {1, 2}, true}}, "writes into block 2, which another sequence writes");
}

TEST_F(BlockLedgerTest, ACopyIsWrittenByWhoeverBeginsTo) {
  Ok({{0, 0, 20, {1, 2}, true}});
  StepPlan fork = Plan({{1, 20, 1, {1, 3}, true}});
  fork.moves = {{.from = {2}, .to = {3}}};
  EXPECT_TRUE(ledger_.Apply(fork).ok());
  Ok({{0, 20, 1, {}}, {1, 21, 1, {}}});
  Broken({{2, 22, 1, {1, 3}, true}}, "writes into block 3");
}

class WindowLedgerTest : public LedgerTest {
 protected:
  WindowLedgerTest() : LedgerTest(kWindow) {}
};

TEST_F(WindowLedgerTest, ABlockBehindTheWindowMayGoToAnyone) {
  Ok({{0, 0, 36, {1, 2, 3, 0, 1, 2}, true}});
  // Position 36 is the first that does not read block 0 of the window's group: it goes to another
  // sequence, and to itself.
  Ok({{0, 36, 1, {}}, {1, 0, 5, {4, 0}, true}});
  Ok({{0, 37, 14, {5, 3}}});
  Ok({{0, 51, 1, {}}, {2, 0, 5, {6, 1}, true}});
}

TEST_F(WindowLedgerTest, ATableMayHoldABlockAgain) {
  Ok({{0, 0, 36, {1, 2, 3, 0, 1, 2}, true}});
  Ok({{0, 36, 20, {5, 0}}});
  Ok({{0, 56, 1, {}}});
}

TEST_F(WindowLedgerTest, SeesABlockWithinTheWindowThatWasGivenAway) {
  Ok({{0, 0, 34, {1, 2, 3, 0, 1, 2}, true}});
  Ok({{1, 0, 5, {4, 0}, true}});
  Broken({{0, 34, 1, {}}}, "block 0, which holds its tokens from 0, was given to another sequence");
}

TEST_F(WindowLedgerTest, SeesABlockOfTheWholeContextThatWasGivenAway) {
  Ok({{0, 0, 40, {1, 2, 3, 0, 1, 2}, true}});
  Ok({{1, 0, 5, {1, 4}, true}});
  Broken({{0, 40, 1, {}}}, "block 1, which holds its tokens from 0, was given to another sequence");
}

TEST_F(WindowLedgerTest, ACachedPrefixNeedsItsLastWindowOnly) {
  Ok({{0, 0, 48, {1, 2, 3, 0, 1, 2}, true}});
  Ok({{1, 48, 1, {1, 2, 3, 4, kNoBlock, 1, 2, 3}, true}});
  Broken({{2, 48, 1, {1, 2, 3, 5, kNoBlock, kNoBlock, 2, 4}, true}},
         "the block of its tokens from 16 is missing");
}

TEST_F(WindowLedgerTest, SeesAWriteIntoABlockThatIsMissing) {
  Broken({{0, 0, 5, {1, kNoBlock}, true}}, "the block of its tokens from 0 is missing");
}

TEST_F(WindowLedgerTest, MovesAreWithinTheirGroup) {
  Ok({{0, 0, 20, {1, 2, 1, 2}, true}});
  StepPlan fork = Plan({{1, 20, 1, {1, 3, 1, 5}, true}});
  fork.moves = {{.group = 0, .from = {2}, .to = {3}}, {.group = 1, .from = {2}, .to = {5}}};
  EXPECT_TRUE(ledger_.Apply(fork).ok());
  Broken({{2, 21, 1, {1, 3, 1, 4}, true}}, "block 4 holds 0 tokens, but the row reads 5");
}

}  // namespace
}  // namespace millrace
