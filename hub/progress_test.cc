#include "hub/progress.h"

#include <string>

#include "gtest/gtest.h"

namespace millrace {
namespace {

TEST(ProgressTest, TheBarIsFullAtTheEndAlone) {
  EXPECT_EQ(ProgressBar(0), "[" + std::string(24, '-') + "]");
  EXPECT_EQ(ProgressBar(0.25), "[" + std::string(6, '#') + std::string(18, '-') + "]");
  EXPECT_EQ(ProgressBar(0.999), "[" + std::string(23, '#') + "-]");
  EXPECT_EQ(ProgressBar(1), "[" + std::string(24, '#') + "]");
  EXPECT_EQ(ProgressBar(1.5), ProgressBar(1));  // a server without ranges gave bytes again
  EXPECT_EQ(ProgressBar(-1), ProgressBar(0));
}

}  // namespace
}  // namespace millrace
