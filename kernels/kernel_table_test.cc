// Tests of the kernel table. They need no GPU.
#include "kernels/kernel_table.h"

#include <optional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace::kernels {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAreArray;

// Returns the kernels of the table that an architecture does not get.
std::vector<Kernel> Lacks(Architecture architecture) {
  std::vector<Kernel> lacks;
  for (int k = 0; k <= static_cast<int>(Kernel::kShareSamples); ++k) {
    const auto kernel = static_cast<Kernel>(k);
    if (!IsFor(kernel, architecture)) lacks.push_back(kernel);
  }
  return lacks;
}

TEST(KernelTableTest, SaysWhichKernelsEachArchitectureGets) {
  const std::vector<Kernel> with_wgmma = {Kernel::kLinearBf16Sm90, Kernel::kLinearFp8Sm90,
                                          Kernel::kGroupedLinear, Kernel::kPrefillSm90,
                                          Kernel::kGatedClusters};
  std::vector<Kernel> with_wgmma_or_fp8 = with_wgmma;
  with_wgmma_or_fp8.push_back(Kernel::kLinearFp8);
  EXPECT_THAT(Lacks(Architecture::kSm80), UnorderedElementsAreArray(with_wgmma_or_fp8));
  EXPECT_THAT(Lacks(Architecture::kSm89), UnorderedElementsAreArray(with_wgmma));
  EXPECT_THAT(Lacks(Architecture::kSm90a), IsEmpty());
  // These are newer than sm_90a, and have no wgmma.
  EXPECT_THAT(Lacks(Architecture::kSm100), UnorderedElementsAreArray(with_wgmma));
  EXPECT_THAT(Lacks(Architecture::kSm120), UnorderedElementsAreArray(with_wgmma));
}

TEST(KernelTableTest, AGpuHasTheArchitectureOfItsCapability) {
  EXPECT_EQ(ArchitectureOf(7, 5, true), std::nullopt);
  EXPECT_EQ(ArchitectureOf(8, 0, true), Architecture::kSm80);
  EXPECT_EQ(ArchitectureOf(8, 6, true), Architecture::kSm80);
  EXPECT_EQ(ArchitectureOf(8, 9, true), Architecture::kSm89);
  EXPECT_EQ(ArchitectureOf(9, 0, true), Architecture::kSm90a);
  EXPECT_EQ(ArchitectureOf(9, 0, false), Architecture::kSm89);
  EXPECT_EQ(ArchitectureOf(10, 0, true), Architecture::kSm100);
  EXPECT_EQ(ArchitectureOf(10, 3, true), Architecture::kSm89);
  EXPECT_EQ(ArchitectureOf(12, 0, true), Architecture::kSm120);
  EXPECT_EQ(ArchitectureOf(12, 1, true), Architecture::kSm89);
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
