#include "base/file_reading.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

namespace millrace {
namespace {

using ::testing::ElementsAre;

class FileReadingTest : public testing::Test {
 protected:
  // Calls `act` and returns how many lines of the log that gave.
  template <typename Act>
  static int Lines(const Act& act) {
    testing::internal::CaptureStderr();
    act();
    const std::string log = testing::internal::GetCapturedStderr();
    return static_cast<int>(std::count(log.begin(), log.end(), '\n'));
  }
  int Report(const absl::Status& status) {
    return Lines([&] { reading_.Report(status); });
  }

  ManualClock clock_;
  FileReading reading_{"keys", "the keys stay as they were", clock_};
};

TEST_F(FileReadingTest, LogsAFailureOnceAMinuteAndAnotherOneAtOnce) {
  const absl::Status one = absl::NotFoundError("one"), other = absl::NotFoundError("other");
  EXPECT_EQ(Report(absl::OkStatus()), 0);
  EXPECT_EQ(Report(one), 1);
  clock_.Advance(std::chrono::seconds(30));
  EXPECT_EQ(Report(one), 0);
  clock_.Advance(std::chrono::seconds(30));
  EXPECT_EQ(Report(one), 1);
  EXPECT_EQ(Report(other), 1);
  EXPECT_EQ(Lines([&] { reading_.Remind(); }), 0);
  clock_.Advance(std::chrono::seconds(60));
  EXPECT_EQ(Lines([&] { reading_.Remind(); }), 1);
  EXPECT_EQ(Report(absl::OkStatus()), 0);
  clock_.Advance(std::chrono::seconds(60));
  EXPECT_EQ(Lines([&] { reading_.Remind(); }), 0);
  EXPECT_EQ(Report(one), 1) << "after a success it is news again";
}

TEST_F(FileReadingTest, TellsWhenItTurns) {
  std::vector<bool> told;
  reading_.OnChange([&told](bool failing) { told.push_back(failing); });
  Report(absl::NotFoundError("one"));
  EXPECT_TRUE(reading_.failing());
  Report(absl::NotFoundError("other"));
  Report(absl::OkStatus());
  EXPECT_FALSE(reading_.failing());
  Report(absl::InternalError(""));
  EXPECT_TRUE(reading_.failing());
  EXPECT_THAT(told, ElementsAre(false, true, false, true));
}

}  // namespace
}  // namespace millrace
