#include "scheduler/draft_record.h"

#include <vector>

#include "gtest/gtest.h"

namespace millrace {
namespace {

void ObserveAlike(DraftRecord& record, bool right, int times) {
  for (int i = 0; i < times; ++i) record.Observe({1}, {right ? 1 : 2});
}

TEST(DraftRecordTest, FollowsWhatCame) {
  DraftRecord record;
  ObserveAlike(record, true, 200);
  EXPECT_GT(record.acceptance(), 0.95);
  ObserveAlike(record, false, 200);
  EXPECT_LT(record.acceptance(), 0.05);
  ObserveAlike(record, true, 200);
  EXPECT_GT(record.acceptance(), 0.95);
}

// What follows a wrong token says nothing, and neither does what has not come yet.
TEST(DraftRecordTest, CountsUpToTheFirstWrongToken) {
  DraftRecord one, other;
  one.Observe({1, 2, 3, 4}, {1, 9, 3, 4});
  other.Observe({1, 2}, {1, 9});
  EXPECT_EQ(one.acceptance(), other.acceptance());
  const double before = one.acceptance();
  one.Observe({1, 2}, {});
  EXPECT_EQ(one.acceptance(), before);
}

TEST(DraftRecordTest, DraftsAsFarAsATokenIsWorthItsPosition) {
  DraftRecord record;
  ObserveAlike(record, true, 300);
  ObserveAlike(record, false, 5);  // right about nine times in ten
  EXPECT_EQ(record.WorthDrafting(/*cost=*/0.01, 8), 8);
  EXPECT_EQ(record.WorthDrafting(/*cost=*/0.95, 8), 0);
  const int32_t some = record.WorthDrafting(/*cost=*/0.5, 8);
  EXPECT_GT(some, 1);
  EXPECT_LT(some, 8);
  ObserveAlike(record, false, 300);
  EXPECT_EQ(record.WorthDrafting(/*cost=*/0.1, 8), 0);
}

}  // namespace
}  // namespace millrace
