#include "hub/cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "base/strings.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr int kWriters = 8;
constexpr int kFiles = 50;

class HubCacheTest : public ::testing::Test {
 protected:
  void TearDown() override { fs::remove_all(folder_); }

  // Writes as containers do that share a cache, in each of which the server is process 1.
  template <typename Write>
  static void InThreads(const Write& write) {
    std::vector<std::thread> threads;
    for (int i = 0; i < kWriters; ++i) threads.emplace_back(write);
    for (std::thread& thread : threads) thread.join();
  }

  const std::string folder_ = StrCat(::testing::TempDir(), "hub_cache_test_", getpid());
  const std::string commit_ = std::string(40, 'a');
  const HubCache cache_{folder_, "org/model"};
};

TEST_F(HubCacheTest, SeveralLinkTheSameFiles) {
  fs::create_directories(cache_.Blob("etag").parent_path());
  std::ofstream(cache_.Blob("etag")) << "text";
  InThreads([this] {
    for (int i = 0; i < kFiles; ++i) {
      const absl::Status linked = cache_.Link(commit_, StrCat("file-", i), "etag");
      EXPECT_TRUE(linked.ok()) << linked;
    }
  });
  EXPECT_EQ(cache_.Files(commit_).size(), kFiles);
}

TEST_F(HubCacheTest, SeveralWriteTheSameRef) {
  InThreads([this] {
    for (int i = 0; i < kFiles; ++i) {
      const absl::Status written = cache_.WriteRef(StrCat("branch-", i), commit_);
      EXPECT_TRUE(written.ok()) << written;
    }
  });
  EXPECT_EQ(cache_.Commit("branch-0"), commit_);
  const fs::path refs = fs::path(folder_) / "models--org--model" / "refs";
  EXPECT_EQ(std::distance(fs::directory_iterator(refs), fs::directory_iterator()), kFiles);
}

}  // namespace
}  // namespace millrace
