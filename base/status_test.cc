#include "base/status.h"

#include <gtest/gtest.h>

#include <memory>

namespace millrace {
namespace {

absl::StatusOr<std::unique_ptr<int>> Make(int value) {
  if (value < 0) return absl::OutOfRangeError("negative");
  return std::make_unique<int>(value);
}

absl::StatusOr<int> Sum(int a, int b) {
  MILLRACE_ASSIGN_OR_RETURN(const std::unique_ptr<int> first, Make(a));
  MILLRACE_ASSIGN_OR_RETURN(const std::unique_ptr<int> second, Make(b));
  return *first + *second;
}

absl::Status Check(const absl::Status& status, bool& passed) {
  MILLRACE_RETURN_IF_ERROR(status);
  passed = true;
  return absl::OkStatus();
}

TEST(StatusTest, AssignOrReturnGivesTheValueOrLeaves) {
  EXPECT_EQ(Sum(2, 3).value(), 5);
  EXPECT_EQ(Sum(2, -3).status(), absl::OutOfRangeError("negative"));
}

TEST(StatusTest, ReturnIfErrorLeavesOnlyOnAnError) {
  bool passed = false;
  EXPECT_EQ(Check(absl::AbortedError("x"), passed), absl::AbortedError("x"));
  EXPECT_FALSE(passed);
  EXPECT_TRUE(Check(absl::OkStatus(), passed).ok());
  EXPECT_TRUE(passed);
}

TEST(StatusTest, AnnotateKeepsTheCode) {
  EXPECT_EQ(Annotate(absl::NotFoundError("x"), "file"), absl::NotFoundError("file: x"));
  EXPECT_TRUE(Annotate(absl::OkStatus(), "file").ok());
}

}  // namespace
}  // namespace millrace
