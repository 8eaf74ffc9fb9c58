#include "formats/distributed/checkpoint_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>

#include "formats/distributed/checkpoint_test_util.h"
#include "formats/distributed/tensor_stream.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class CheckpointFolderTest : public testing::Test {
 protected:
  CheckpointFolderTest()
      : folder_(fs::path(testing::TempDir()) /
                testing::UnitTest::GetInstance()->current_test_info()->name()) {
    fs::create_directories(folder_);
  }
  ~CheckpointFolderTest() override { fs::remove_all(folder_); }

  void Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
  }

  // Appends a saved tensor to a file's bytes, as the chunk there.
  static TestChunk Save(std::string* file, std::vector<int64_t> offsets, std::vector<int64_t> sizes,
                        const std::string& saved) {
    TestChunk chunk{.offsets = std::move(offsets), .sizes = std::move(sizes)};
    chunk.offset = static_cast<int64_t>(file->size());
    chunk.length = static_cast<int64_t>(saved.size());
    *file += saved;
    return chunk;
  }

  // Returns the elements of the only tensor, read `window` at a time; an error's message in
  // `error`.
  std::vector<float> Read(int64_t window, std::string* error) const {
    absl::StatusOr<CheckpointFolder> folder = CheckpointFolder::Open(folder_);
    if (!folder.ok()) {
      *error = std::string(folder.status().message());
      return {};
    }
    const CheckpointTensor& tensor = folder->metadata().tensors[0];
    absl::StatusOr<TensorStream> stream = TensorStream::Open(&*folder, tensor);
    if (!stream.ok()) {
      *error = std::string(stream.status().message());
      return {};
    }
    std::vector<float> all;
    for (int64_t left = ElementsOf(tensor.shape); left > 0; left -= window) {
      std::vector<float> part(std::min(left, window));
      const absl::Status status =
          stream->Read({reinterpret_cast<uint8_t*>(part.data()), part.size() * sizeof(float)});
      if (!status.ok()) *error = std::string(status.message());
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  const fs::path folder_;
};

std::vector<float> Count(int64_t begin, int64_t count) {
  std::vector<float> numbers(count);
  std::iota(numbers.begin(), numbers.end(), static_cast<float>(begin));
  return numbers;
}

// Rows of 0 1 2 3 4 5, 6 7 …: the left two columns, the right four, the last row by itself.
TEST_F(CheckpointFolderTest, ChunksOfAnyShapeMakeATensor) {
  std::string file = "front";
  std::string other;
  const std::vector<TestChunk> chunks = {
      Save(&file, {0, 0}, {2, 2}, SavedTensor({2, 2}, {2, 1}, {0, 1, 6, 7})),
      Save(&file, {0, 2}, {2, 4}, SavedTensor({2, 4}, {1, 2}, {2, 8, 3, 9, 4, 10, 5, 11})),
      Save(&other, {2, 0}, {1, 6}, SavedTensor({1, 6}, {6, 1}, Count(12, 6)))};
  TestTensor tensor{"w", {3, 6}, chunks};
  tensor.chunks[2].file = "__1_0.distcp";
  Write("__0_0.distcp", file);
  Write("__1_0.distcp", other);
  Write(".metadata", MetadataOf({tensor}));
  for (const int64_t window : {1, 2, 3, 5, 7, 18}) {
    std::string error;
    EXPECT_EQ(Read(window, &error), Count(0, 18)) << window << error;
  }
}

TEST_F(CheckpointFolderTest, SafetensorsBeginAtTheOffset) {
  const std::string header =
      R"({"w":{"dtype":"F32","shape":[2,2],"data_offsets":[4,20]},"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  std::string file = "bytes of objects";
  const auto offset = static_cast<int64_t>(file.size());
  file += std::string(1, static_cast<char>(header.size())) + std::string(7, '\0') + header;
  const std::vector<float> data = {9, 0, 1, 2, 3};
  file.append(reinterpret_cast<const char*>(data.data()), data.size() * sizeof(float));
  Write("__0_0.distcp", file);
  Write(".metadata", MetadataOf({{"w", {2, 2}, {{{0, 0}, {2, 2}, "__0_0.distcp", offset, 16}}}}));
  std::string error;
  EXPECT_EQ(Read(3, &error), Count(0, 4)) << error;
}

TEST_F(CheckpointFolderTest, WhatIsMissingOrShortIsNamed) {
  std::string file;
  TestTensor tensor{
      "w", {2, 3}, {Save(&file, {0, 0}, {2, 3}, SavedTensor({2, 3}, {3, 1}, Count(0, 6)))}};
  std::string error;
  Read(6, &error);
  EXPECT_THAT(error, HasSubstr(".metadata"));
  Write(".metadata", MetadataOf({tensor}));
  Read(6, &error);
  EXPECT_THAT(error, HasSubstr("__0_0.distcp"));
  Write("__0_0.distcp", file.substr(0, file.size() - 1));
  Read(6, &error);
  EXPECT_THAT(error, HasSubstr("__0_0.distcp: tensor w: a chunk of"));
  // The archive is whole, its storage too short.
  file.clear();
  tensor.chunks = {Save(&file, {0, 0}, {2, 3}, SavedTensor({2, 3}, {3, 1}, Count(0, 5)))};
  Write("__0_0.distcp", file);
  Write(".metadata", MetadataOf({tensor}));
  Read(6, &error);
  EXPECT_THAT(error, HasSubstr("tensor w: its storage has 20 bytes, which is too short"));
  file.clear();
  tensor.chunks = {Save(&file, {0, 0}, {2, 3}, SavedTensor({3, 2}, {2, 1}, Count(0, 6)))};
  Write("__0_0.distcp", file);
  Write(".metadata", MetadataOf({tensor}));
  Read(6, &error);
  EXPECT_THAT(error, HasSubstr("its shape is not the chunk's"));
}

// As many elements as the tensor has, and one of them twice.
TEST_F(CheckpointFolderTest, ChunksThatOverlapAreNamed) {
  std::string file;
  const TestTensor tensor{"w",
                          {4},
                          {Save(&file, {0}, {2}, SavedTensor({2}, {1}, Count(0, 2))),
                           Save(&file, {1}, {2}, SavedTensor({2}, {1}, Count(1, 2)))}};
  Write("__0_0.distcp", file);
  Write(".metadata", MetadataOf({tensor}));
  std::string error;
  Read(4, &error);
  EXPECT_THAT(error, HasSubstr("tensor w: "));
  EXPECT_THAT(error, HasSubstr("overlap"));
}

}  // namespace
}  // namespace millrace
