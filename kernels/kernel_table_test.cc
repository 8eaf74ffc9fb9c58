// Tests of the kernel table. They need no GPU.
#include "kernels/kernel_table.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace::kernels {
namespace {

using ::testing::HasSubstr;

TEST(KernelTableTest, SaysWhatIsForWhichArchitecture) {
  EXPECT_TRUE(IsFor(Kernel::kPrefill, Architecture::kSm80));
  EXPECT_TRUE(IsFor(Kernel::kPrefill, Architecture::kSm90a));
  EXPECT_FALSE(IsFor(Kernel::kPrefillSm90, Architecture::kSm89));
  EXPECT_TRUE(IsFor(Kernel::kPrefillSm90, Architecture::kSm90a));
  EXPECT_FALSE(IsFor(Kernel::kLinearFp8, Architecture::kSm80));
  EXPECT_TRUE(IsFor(Kernel::kLinearFp8, Architecture::kSm89));
}

TEST(KernelTableTest, PrintsARowAnOp) {
  const std::string text = KernelTableText();
  EXPECT_THAT(text, HasSubstr("| op "));
  EXPECT_THAT(text, HasSubstr("| attention/paged_prefill_sm90, else attention/paged_prefill "));
  EXPECT_THAT(text, HasSubstr("| gemm/sm90/skinny_linear, wide_linear, else cuBLASLt "));
  size_t width = 0;
  size_t lines = 0;
  for (size_t begin = 0; begin < text.size(); ++lines) {
    const size_t end = text.find('\n', begin);
    if (lines == 0) width = end;
    EXPECT_EQ(end - begin, width) << text.substr(begin, end - begin);
    begin = end + 1;
  }
  EXPECT_GT(lines, 10u);
}

TEST(KernelTableTest, SaysHowFarOneShotGoes) {
  EXPECT_EQ(
      CrossoversText(),
      "Sums over ranks: one-shot with 2; by size, the larger ones two-shot: 3 ranks up to 128 "
      "KiB, 4 ranks up to 96 KiB, 5 ranks up to 76 KiB, 6 ranks up to 64 KiB, 7 ranks up to "
      "54 KiB, 8 ranks up to 48 KiB.\n");
}

}  // namespace
}  // namespace millrace::kernels
