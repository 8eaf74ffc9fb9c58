#include "server/convert/folder_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "formats/json/json.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class FolderWriterTest : public testing::Test {
 protected:
  FolderWriterTest()
      : place_(fs::path(testing::TempDir()) /
               testing::UnitTest::GetInstance()->current_test_info()->name()) {
    fs::remove_all(place_);
    fs::create_directories(place_);
  }
  ~FolderWriterTest() override { fs::remove_all(place_); }

  int64_t Entries() const {
    return std::distance(fs::directory_iterator(place_), fs::directory_iterator());
  }

  const fs::path place_;
};

TEST_F(FolderWriterTest, AFolderIsThereOnceItIsPublished) {
  const std::string target = place_ / "model/";
  {
    absl::StatusOr<std::unique_ptr<FolderWriter>> writer = FolderWriter::Create(target);
    ASSERT_TRUE(writer.ok()) << writer.status();
    EXPECT_TRUE((*writer)->WriteFile("config.json", "{}").ok());
    EXPECT_FALSE(fs::exists(place_ / "model"));
    ASSERT_TRUE((*writer)->Publish().ok());
  }
  EXPECT_TRUE(fs::exists(place_ / "model/config.json"));
  EXPECT_EQ(Entries(), 1);
}

TEST_F(FolderWriterTest, WhatIsNotPublishedIsRemoved) {
  {
    absl::StatusOr<std::unique_ptr<FolderWriter>> writer = FolderWriter::Create(place_ / "model");
    ASSERT_TRUE(writer.ok());
    EXPECT_TRUE((*writer)->WriteFile("config.json", "{}").ok());
    EXPECT_EQ(Entries(), 1);
  }
  EXPECT_EQ(Entries(), 0);
}

TEST_F(FolderWriterTest, AnEmptyFolderIsTakenAndNoOther) {
  fs::create_directories(place_ / "empty");
  fs::create_directories(place_ / "full/more");
  std::ofstream(place_ / "file") << "x";
  EXPECT_TRUE(FolderWriter::Create(place_ / "empty").value()->Publish().ok());
  for (const char* name : {"full", "file"}) {
    const absl::Status status = FolderWriter::Create(place_ / name).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr("expected a new or an empty folder"));
  }
  // Files that came meanwhile are not lost.
  absl::StatusOr<std::unique_ptr<FolderWriter>> writer = FolderWriter::Create(place_ / "later");
  fs::create_directories(place_ / "later/more");
  EXPECT_FALSE((*writer)->Publish().ok());
  EXPECT_TRUE(fs::exists(place_ / "later/more"));
}

TEST(ShardsTest, TensorsAreDividedInTheirOrder) {
  const std::vector<TensorHeader> tensors = {
      {"a", "BF16", {3}, 6}, {"b", "F32", {1}, 4}, {"c", "F32", {20}, 80}, {"d", "F32", {}, 4}};
  const std::vector<size_t> counts = DivideAmongShards(tensors, 10);
  EXPECT_THAT(counts, ElementsAre(2, 1, 1));
  const Json index = Json::parse(ShardIndex(tensors, counts));
  EXPECT_EQ(index["metadata"]["total_size"], 94);
  EXPECT_EQ(index["weight_map"]["b"], "model-00001-of-00003.safetensors");
  EXPECT_EQ(index["weight_map"]["d"], "model-00003-of-00003.safetensors");
  const std::string header = SafetensorsHeader(absl::MakeConstSpan(tensors).subspan(0, 2));
  EXPECT_EQ(header.size() % 8, 0u);
  const Json described = Json::parse(header.substr(8));
  EXPECT_EQ(described["b"], Json::parse(R"({"dtype":"F32","shape":[1],"data_offsets":[6,10]})"));
}

}  // namespace
}  // namespace millrace
