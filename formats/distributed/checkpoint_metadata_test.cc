#include "formats/distributed/checkpoint_metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "formats/distributed/checkpoint_test_util.h"

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Error(const std::vector<TestTensor>& tensors) {
  const std::string bytes = MetadataOf(tensors);
  const absl::StatusOr<CheckpointMetadata> read = ReadCheckpointMetadata(BytesOf(bytes));
  return read.ok() ? "(no error)" : std::string(read.status().message());
}

TestTensor Halves() {
  return {"a.weight",
          {4, 2},
          {{{0, 0}, {2, 2}, "__0_0.distcp", 0, 10}, {{2, 0}, {2, 2}, "__1_0.distcp", 5, 10}}};
}

TEST(CheckpointMetadataTest, ReadsTensorsAndWhereTheyAre) {
  const std::string bytes =
      MetadataOf({Halves(),
                  {"optimizer.state.a.weight.exp_avg", {4, 2}, {{{0, 0}, {4, 2}}}},
                  {"b", {}, {{{}, {}, "__0_0.distcp", 10, 3}}, "bfloat16"}});
  const absl::StatusOr<CheckpointMetadata> read = ReadCheckpointMetadata(BytesOf(bytes));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->left_out, 1);
  EXPECT_THAT(read->files, testing::UnorderedElementsAre("__0_0.distcp", "__1_0.distcp"));
  ASSERT_EQ(read->tensors.size(), 2u);
  const CheckpointTensor& tensor = read->tensors[0];
  EXPECT_EQ(tensor.name, "a.weight");
  EXPECT_EQ(tensor.type->safetensors, "F32");
  EXPECT_THAT(tensor.shape, ElementsAre(4, 2));
  ASSERT_EQ(tensor.chunks.size(), 2u);
  EXPECT_EQ(read->files[tensor.chunks[1].file], "__1_0.distcp");
  EXPECT_EQ(tensor.chunks[1].offset, 5u);
  EXPECT_EQ(read->tensors[1].type->safetensors, "BF16");
}

TEST(CheckpointMetadataTest, ChunksThatDoNotMakeATensorAreRefusedByItsName) {
  EXPECT_EQ(Error({Halves()}), "(no error)");
  TestTensor missing = Halves();
  missing.chunks.pop_back();
  EXPECT_THAT(Error({missing}),
              HasSubstr("tensor a.weight: its 1 chunks hold 4 elements, but [4, 2] "
                        "has 8: chunks are missing"));
  TestTensor twice = Halves();
  twice.chunks[1].offsets = {0, 0};
  EXPECT_THAT(Error({twice}), HasSubstr("tensor a.weight: two chunks begin at [0, 0]"));
  TestTensor more = Halves();
  more.chunks[1] = {{1, 0}, {3, 2}};
  EXPECT_THAT(Error({more}), HasSubstr("chunks overlap"));
  TestTensor outside = Halves();
  outside.chunks[1].offsets = {3, 0};
  EXPECT_THAT(Error({outside}), HasSubstr("lies outside of [4, 2]"));
  TestTensor rank = Halves();
  rank.chunks[1].offsets = {2};
  EXPECT_THAT(Error({rank}), HasSubstr("lies outside"));
  // An empty chunk of a rank without a share is none.
  TestTensor empty = Halves();
  empty.chunks.push_back({{4, 0}, {0, 2}});
  EXPECT_EQ(Error({empty}), "(no error)");
}

TEST(CheckpointMetadataTest, WhatIsNotReadIsRefusedByItsName) {
  TestTensor type = Halves();
  type.type = "complex64";
  EXPECT_THAT(Error({type}), HasSubstr("tensor a.weight: dtype torch.complex64 is not supported"));
  TestTensor transform = Halves();
  transform.chunks[0].transform = "zstd";
  EXPECT_THAT(Error({transform}), HasSubstr("transform_descriptors name \"zstd\""));
  TestTensor path = Halves();
  path.chunks[0].file = "../secret";
  EXPECT_THAT(Error({path}), HasSubstr("relative_path is \"../secret\""));
  TestTensor negative = Halves();
  negative.chunks[0].offset = -1;
  EXPECT_THAT(Error({negative}), HasSubstr("whole numbers from 0 on"));
  TestTensor name = Halves();
  name.name = "a b";
  EXPECT_THAT(Error({name}), HasSubstr("printable"));
  EXPECT_THAT(Error({Halves(), Halves()}), HasSubstr("comes twice"));
  TestTensor huge = Halves();
  huge.shape = {int64_t{1} << 40, int64_t{1} << 40};
  EXPECT_THAT(Error({huge}), HasSubstr("too large"));
  const std::string other = pickled::Whole(pickled::Dict({}));
  EXPECT_THAT(std::string(ReadCheckpointMetadata(BytesOf(other)).status().message()),
              HasSubstr("is no torch.distributed.checkpoint.metadata.Metadata"));
}

TEST(CheckpointMetadataTest, EveryCutIsRefused) {
  const std::string good = MetadataOf({Halves()});
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(ReadCheckpointMetadata(BytesOf(good.substr(0, size))).ok()) << size;
  }
}

TEST(CheckpointMetadataTest, TrainingStateIsKnownByItsName) {
  for (const char* name : {"optimizer.state.x", "optim.state.x", "app.optim.state.x",
                           "lr_scheduler.last_epoch", "dataloader", "train_state"}) {
    EXPECT_TRUE(IsTrainingState(name)) << name;
  }
  for (const char* name : {"model.optimizer.x", "optimal.x", "layers.0.optimizer.x"}) {
    EXPECT_FALSE(IsTrainingState(name)) << name;
  }
}

}  // namespace
}  // namespace millrace
