#include "hub/partial_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "base/strings.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

// The digest of "hello, world".
constexpr char kText[] = "hello, world";
constexpr char kSha256[] = "09ca7e4eaa6e8ae9c7d261167129184883644d07dfba7cbfbc4c8a2e08360d5b";
constexpr char kGitBlob[] = "8c01d89ae06311834ee4b1fab2f0414d35f01102";

class PartialFileTest : public ::testing::Test {
 protected:
  void TearDown() override {
    std::filesystem::remove(path_);
    std::filesystem::remove(final_);
  }
  std::unique_ptr<PartialFile> Open(int64_t bytes, int64_t part_bytes) {
    auto file = PartialFile::Open(path_, bytes, part_bytes);
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }
  std::string Final() const {
    std::ifstream file(final_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const std::string path_ = StrCat(::testing::TempDir(), "partial_file_test_", getpid());
  const std::atomic<bool> never_ = false;
  const std::string final_ = StrCat(path_, ".final");
};

TEST_F(PartialFileTest, PartsComeInAnyOrderAndAtAnyTime) {
  {
    const auto file = Open(12, 5);
    ASSERT_EQ(file->parts(), 3);
    ASSERT_TRUE(file->Append(2, "ld").ok());
    ASSERT_TRUE(file->Append(0, "hello").ok());
    EXPECT_EQ(file->missing_bytes(), 5);
  }
  const auto file = Open(12, 5);
  EXPECT_EQ(file->Missing(0), std::pair(int64_t{5}, int64_t{5}));
  EXPECT_EQ(file->Missing(1), std::pair(int64_t{5}, int64_t{10}));
  EXPECT_EQ(file->Missing(2), std::pair(int64_t{12}, int64_t{12}));
  ASSERT_TRUE(file->Append(1, ", ").ok());
  EXPECT_EQ(file->Missing(1).first, 7);
  EXPECT_FALSE(file->Append(1, "worl").ok());
  ASSERT_TRUE(file->Append(1, "wor").ok());
  EXPECT_EQ(file->missing_bytes(), 0);
  EXPECT_TRUE(file->Verify(kSha256, never_).ok()) << file->Verify(kSha256, never_);
  EXPECT_TRUE(file->Verify(kGitBlob, never_).ok()) << file->Verify(kGitBlob, never_);
  EXPECT_TRUE(file->Verify("an-etag-of-another-kind", never_).ok());
  ASSERT_TRUE(file->MoveTo(final_).ok());
  EXPECT_EQ(Final(), kText);
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(PartialFileTest, AWrongChecksumIsTold) {
  const auto file = Open(12, 12);
  ASSERT_TRUE(file->Append(0, "hello, w0rld").ok());
  const absl::Status status = file->Verify(kSha256, never_);
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr(kSha256));
  EXPECT_TRUE(absl::IsDataLoss(file->Verify(kGitBlob, never_)));
  ASSERT_TRUE(file->Restart().ok());
  EXPECT_EQ(file->missing_bytes(), 12);
  ASSERT_TRUE(file->Append(0, kText).ok());
  EXPECT_TRUE(file->Verify(kSha256, never_).ok());
}

TEST_F(PartialFileTest, AChecksumIsNotWaitedForOnceItIsToStop) {
  const auto file = Open(12, 12);
  ASSERT_TRUE(file->Append(0, kText).ok());
  EXPECT_TRUE(absl::IsCancelled(file->Verify(kSha256, /*stop=*/true)));
}

TEST_F(PartialFileTest, HolesTakeNoSpace) {
  EXPECT_EQ(PartialFile::BytesOnDisk(path_), 0);
  const auto file = Open(int64_t{1} << 40, int64_t{1} << 40);
  ASSERT_TRUE(file->Append(0, std::string(1 << 20, 'x')).ok());
  EXPECT_GE(PartialFile::BytesOnDisk(path_), 1 << 20);
  EXPECT_LT(PartialFile::BytesOnDisk(path_), 2 << 20);
}

TEST_F(PartialFileTest, WhatWasBegunForOtherSizesOrIsDamagedBeginsAnew) {
  ASSERT_TRUE(Open(12, 5)->Append(0, "hello").ok());
  EXPECT_EQ(Open(12, 6)->missing_bytes(), 12);
  ASSERT_TRUE(Open(12, 5)->Append(0, "hello").ok());
  EXPECT_EQ(Open(13, 5)->missing_bytes(), 13);
  for (const size_t at : {12u, 20u, 28u}) {  // the table's magic, part size and first count
    std::filesystem::remove(path_);
    ASSERT_TRUE(Open(12, 5)->Append(0, "hello").ok());
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(at));
    file.put('\x7F');
    file.close();
    EXPECT_EQ(Open(12, 5)->missing_bytes(), 12) << at;
  }
}

TEST_F(PartialFileTest, AnEmptyFileHasNoParts) {
  const auto file = Open(0, 5);
  EXPECT_EQ(file->parts(), 0);
  EXPECT_TRUE(file->Verify("e69de29bb2d1d6434b8b29ae775ad8c2e48c5391", never_).ok());
  ASSERT_TRUE(file->MoveTo(final_).ok());
  EXPECT_EQ(Final(), "");
}

}  // namespace
}  // namespace millrace
