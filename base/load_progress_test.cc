#include "base/load_progress.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(LoadProgressTest, SaysTheStageAndItsShare) {
  LoadProgress progress;
  EXPECT_EQ(progress.Describe(), "");
  progress.Begin("fetching a/b");
  progress.Add(100);
  EXPECT_EQ(progress.Describe(), "fetching a/b");
  progress.SetTotal(1 << 20, 4 << 20);
  progress.Add(1 << 20);
  EXPECT_EQ(progress.Describe(), "fetching a/b: 50 % of 4 MiB");
  progress.Add(-(3 << 20));
  EXPECT_EQ(progress.Describe(), "fetching a/b: 0 % of 4 MiB");
  progress.Add(int64_t{1} << 40);
  EXPECT_EQ(progress.Describe(), "fetching a/b: 100 % of 4 MiB");
  progress.Begin("loading the model");
  EXPECT_EQ(progress.Describe(), "loading the model");
}

}  // namespace
}  // namespace millrace
