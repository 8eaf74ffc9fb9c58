#include "server/bench/machine.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(MachineTest, HasACpu) {
  const Machine machine = ReadMachine();
  EXPECT_FALSE(machine.cpu.empty());
  EXPECT_GE(machine.cores, 1);
}

TEST(MachineTest, ReadsWhatNvidiaSmiSays) {
  const auto reading = ParseGpuReading("NVIDIA H200, 580.159.04, 1980, 3201, 312.55, 45\n");
  ASSERT_TRUE(reading.has_value());
  EXPECT_EQ(reading->name, "NVIDIA H200");
  EXPECT_EQ(reading->driver, "580.159.04");
  EXPECT_EQ(reading->sm_mhz, 1980);
  EXPECT_EQ(reading->memory_mhz, 3201);
  EXPECT_EQ(reading->watts, 312.55);
  EXPECT_EQ(reading->celsius, 45);
}

TEST(MachineTest, AnythingElseIsNoReading) {
  for (const char* line : {"", "No devices were found\n", "NVIDIA H200, 580, 1980, 3201, [N/A], 45",
                           "a, b, 1, 2, 3", "a, b, 1, 2, 3, 4, 5"}) {
    EXPECT_FALSE(ParseGpuReading(line).has_value()) << line;
  }
}

}  // namespace
}  // namespace millrace
