#include "base/control_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/strings.h"

namespace millrace {
namespace {

class ControlGroupTest : public testing::Test {
 protected:
  ControlGroupTest() : root_(testing::TempDir() + StrCat("control_group_", getpid())) {}
  ~ControlGroupTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  // Cores under the quota; by the affinity of this process at the most.
  int Cores() const { return UsableCores(root_); }

  const std::filesystem::path root_;
  const int all_ = UsableCores(root_);
};

TEST_F(ControlGroupTest, WithoutAQuotaTheAffinityCounts) {
  EXPECT_GE(all_, 1);
  Write("proc/self/cgroup", "0::/a\n");
  Write("sys/fs/cgroup/a/cpu.max", "max 100000\n");
  EXPECT_EQ(Cores(), all_);
  Write("sys/fs/cgroup/a/cpu.max", "100000000 100000\n");  // more than there are
  EXPECT_EQ(Cores(), all_);
  Write("sys/fs/cgroup/a/cpu.max", "what\n");
  EXPECT_EQ(Cores(), all_);
}

TEST_F(ControlGroupTest, AQuotaIsRoundedDownToACoreAtTheLeast) {
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  for (const char* quota : {"100000", "150000", "50000", "1000"}) {
    Write("sys/fs/cgroup/a/cpu.max", StrCat(quota, " 100000\n"));  // the group around counts
    EXPECT_EQ(Cores(), 1) << quota;
  }
}

TEST_F(ControlGroupTest, AContainersGroupLiesAtTheMount) {
  Write("proc/self/cgroup", "0::/../docker/xyz\n");
  Write("sys/fs/cgroup/cpu.max", "100000 100000\n");
  EXPECT_EQ(Cores(), 1);
}

TEST_F(ControlGroupTest, VersionOne) {
  Write("proc/self/cgroup", "4:memory:/x\n3:cpu,cpuacct:/docker/xyz\n");
  Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  Write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Cores(), all_);
  Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "120000\n");
  EXPECT_EQ(Cores(), 1);
}

TEST_F(ControlGroupTest, GroupsOfOtherControllersAreLeftOut) {
  Write("proc/self/cgroup", "4:memory:/x/y\n3:cpu,cpuacct:/z\nnonsense\n");
  std::vector<std::string> folders;
  for (const ControlGroup& group : ControlGroupsOf("memory", root_)) {
    EXPECT_FALSE(group.version2);
    folders.push_back(group.folder.lexically_relative(root_ / "sys/fs/cgroup").string());
  }
  EXPECT_THAT(folders, testing::ElementsAre("memory/x/y", "memory/x", "memory/"));
}

}  // namespace
}  // namespace millrace
