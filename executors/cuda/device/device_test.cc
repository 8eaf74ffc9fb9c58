#include "executors/cuda/device/device.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace::cuda {
namespace {

using ::testing::HasSubstr;

TEST(ToStatusTest, SaysWhatWasDoneAndWhatCudaSays) {
  EXPECT_TRUE(ToStatus(cudaSuccess, "nothing").ok());
  const absl::Status memory = ToStatus(cudaErrorMemoryAllocation, "memory for logits");
  EXPECT_EQ(memory.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(memory.message()), HasSubstr("memory for logits"));
  const absl::Status launch = ToStatus(cudaErrorLaunchFailure, "norm");
  EXPECT_EQ(launch.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(launch.message()), HasSubstr("cudaErrorLaunchFailure"));
}

TEST(ToStatusTest, NamesTheBuildSettingOfAnotherGpu) {
  EXPECT_THAT(std::string(ToStatus(cudaErrorNoKernelImageForDevice, "embed").message()),
              HasSubstr("MILLRACE_CUDA_ARCHITECTURES"));
}

}  // namespace
}  // namespace millrace::cuda
