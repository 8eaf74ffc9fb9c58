#include "formats/huggingface/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <random>
#include <string>

#include "formats/twins/hf_test_util.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

absl::StatusOr<SafetensorsFile> OpenBytes(std::string_view bytes) {
  const std::string path =
      StrCat(::testing::TempDir(), "safetensors_test_", getpid(), ".safetensors");
  WriteFile(path, bytes);
  absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  unlink(path.c_str());
  return file;
}

std::string ErrorOf(const absl::StatusOr<SafetensorsFile>& file) {
  if (file.ok()) return "no error";
  std::string message(file.status().message());
  EXPECT_THAT(message, HasSubstr("safetensors_test_"));  // the file's name, not its folder
  EXPECT_THAT(message, Not(HasSubstr(::testing::TempDir())));
  return message;
}

// The error of a file of one tensor "t" of 64 bytes with this entry.
std::string EntryError(std::string_view entry, size_t data = 64) {
  return ErrorOf(
      OpenBytes(SafetensorsBytes(StrCat("{\"t\":", entry, "}"), std::string(data, 'x'))));
}

TEST(SafetensorsTest, ReadsTensorsOfEachType) {
  std::vector<float> values(3 * 8);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 0.5f - 6;
  SafetensorsWriter writer;
  for (const TensorType type :
       {TensorType::kFp8E4m3, TensorType::kF32, TensorType::kF16, TensorType::kBf16}) {
    writer.Tensor(std::string(Traits(type).name), type, {3, 8}, values);
  }
  writer.Tensor("number", TensorType::kF32, {}, {2.5f});
  absl::StatusOr<SafetensorsFile> opened = OpenBytes(writer.Bytes());
  ASSERT_TRUE(opened.ok()) << opened.status();
  const SafetensorsFile file = *std::move(opened);  // names must survive the move
  ASSERT_EQ(file.tensors.size(), 5u);
  EXPECT_EQ(file.tensors[0].name, "F8_E4M3");
  EXPECT_EQ(file.tensors[4].name, "number");
  EXPECT_TRUE(file.tensors[4].shape.empty());
  EXPECT_EQ(file.tensors[4].bytes, 4u);
  for (int i = 0; i < 4; ++i) {
    const TensorInfo& tensor = file.tensors[i];
    EXPECT_EQ(Traits(tensor.type).name, tensor.name);
    EXPECT_THAT(tensor.shape, ElementsAre(3, 8));
    EXPECT_EQ(DecodeTensor(tensor.type, file.file.bytes().subspan(tensor.offset, tensor.bytes)),
              values)
        << tensor.name;
  }
  EXPECT_TRUE(OpenBytes(SafetensorsBytes("{}", "")).ok());
  EXPECT_TRUE(OpenBytes(SafetensorsBytes(R"({"__metadata__":{"format":"pt"}} )", "")).ok());
}

TEST(SafetensorsTest, RefusesLyingHeaders) {
  EXPECT_EQ(SafetensorsFile::Open("/nonexistent/x.safetensors").status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_THAT(ErrorOf(OpenBytes("{}")), HasSubstr("header length: the file ends inside it"));
  EXPECT_THAT(ErrorOf(OpenBytes(std::string(64, '\xff'))),
              HasSubstr("header length: 18446744073709551615, must be at most 16777216"));
  EXPECT_THAT(ErrorOf(OpenBytes(SafetensorsBytes("", ""))), HasSubstr("header: "));
  EXPECT_THAT(ErrorOf(OpenBytes(SafetensorsBytes("[1]", ""))), HasSubstr("header: is a list of 1"));
  EXPECT_THAT(ErrorOf(OpenBytes(SafetensorsBytes("{\"a\":1} {}", ""))), HasSubstr("header: "));
  EXPECT_THAT(ErrorOf(OpenBytes(SafetensorsBytes("{}", "x"))),
              HasSubstr("data: 1 bytes belong to no tensor"));
  const std::string t = R"("t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  EXPECT_THAT(ErrorOf(OpenBytes(SafetensorsBytes(StrCat("{", t, ",\"t\":0}"), "xxxx"))),
              HasSubstr("\"t\" comes twice"));
}

TEST(SafetensorsTest, RefusesLyingTensors) {
  EXPECT_EQ(EntryError(R"({"dtype":"F32","shape":[16],"data_offsets":[0,64]})"), "no error");
  EXPECT_EQ(EntryError(R"({"dtype":"I64","shape":[8],"data_offsets":[0,64]})"), "no error");
  EXPECT_EQ(EntryError(R"({"dtype":"I32","shape":[16],"data_offsets":[0,64]})"), "no error");
  EXPECT_THAT(EntryError(R"({"dtype":"I16","shape":[32],"data_offsets":[0,64]})"),
              HasSubstr("tensor t: dtype \"I16\" is not supported (supported: F32"));
  EXPECT_THAT(EntryError(R"({"dtype":"Q8_0","shape":[8],"data_offsets":[0,64]})"),
              HasSubstr("dtype \"Q8_0\" is not supported"));
  EXPECT_THAT(EntryError(R"({"dtype":7,"shape":[8],"data_offsets":[0,64]})"),
              HasSubstr("dtype is 7"));
  EXPECT_THAT(EntryError("3"), HasSubstr("tensor t: is 3"));
  EXPECT_THAT(EntryError(R"({"dtype":"F32","shape":[16]})"), HasSubstr("must have dtype, shape"));
  EXPECT_THAT(EntryError(R"({"dtype":"F32","shape":[16],"data_offsets":[0,64],"strides":[1]})"),
              HasSubstr("unknown key \"strides\""));
  const auto shape = [](std::string_view sizes) {
    return EntryError(StrCat(R"({"dtype":"F32","data_offsets":[0,64],"shape":)", sizes, "}"));
  };
  EXPECT_THAT(shape("[0, 16]"), HasSubstr("shape holds 0"));
  EXPECT_THAT(shape("[-16]"), HasSubstr("shape holds -16"));
  EXPECT_THAT(shape("[16.0]"), HasSubstr("shape holds 16.0"));
  EXPECT_THAT(shape("[4294967296, 4294967296]"), HasSubstr("shape holds 4294967296"));
  EXPECT_THAT(shape("[18446744073709551615]"), HasSubstr("shape holds 18446744073709551615"));
  EXPECT_THAT(shape("16"), HasSubstr("shape is 16"));
  EXPECT_THAT(shape("[1,1,1,1,1,1,1,1,16]"), HasSubstr("shape is a list of 9"));
  EXPECT_THAT(shape("[15]"), HasSubstr("data_offsets hold 64 bytes, but F32 [15] has 60"));
  const auto offsets = [](std::string_view numbers) {
    return EntryError(StrCat(R"({"dtype":"F32","shape":[16],"data_offsets":)", numbers, "}"));
  };
  EXPECT_THAT(offsets("[0]"), HasSubstr("must be two numbers"));
  EXPECT_THAT(offsets("[-4, 60]"), HasSubstr("must be two numbers"));
  EXPECT_THAT(offsets("[4, 68]"), HasSubstr("outside of the 64 bytes of data"));
  EXPECT_THAT(offsets("[64, 0]"), HasSubstr("data_offsets 64 to 0 are outside"));
  EXPECT_THAT(offsets("[18446744073709551552, 18446744073709551615]"), HasSubstr("outside"));
}

TEST(SafetensorsTest, RefusesHolesAndOverlaps) {
  const auto two = [](int begin, int end, size_t data) {
    return ErrorOf(OpenBytes(SafetensorsBytes(
        StrCat(R"({"t":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},)",
               R"("u":{"dtype":"F32","shape":[4],"data_offsets":[)", begin, ",", end, "]}}"),
        std::string(data, 'x'))));
  };
  EXPECT_EQ(two(16, 32, 32), "no error");
  EXPECT_THAT(two(8, 24, 24), HasSubstr("tensor u: data begins at 8, must be at 16"));
  EXPECT_THAT(two(20, 36, 36), HasSubstr("tensor u: data begins at 20, must be at 16"));
  EXPECT_THAT(two(16, 32, 33), HasSubstr("1 bytes belong to no tensor"));
}

SafetensorsWriter SmallFile() {
  const std::vector<float> values(64, 1.0f);
  SafetensorsWriter writer;
  writer.Tensor("model.norm.weight", TensorType::kF32, {64}, values);
  writer.Tensor("lm_head.weight", TensorType::kFp8E4m3, {2, 32}, values);
  return writer;
}

TEST(SafetensorsTest, EveryTruncationIsAnError) {
  const std::string whole = SmallFile().Bytes();
  ASSERT_TRUE(OpenBytes(whole).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    ASSERT_NE(ErrorOf(OpenBytes(std::string_view(whole).substr(0, size))), "no error") << size;
  }
}

TEST(SafetensorsTest, DamagedHeadersNeverLeadOutsideOfTheFile) {
  const std::string whole = SmallFile().Bytes();
  const size_t header = OpenBytes(whole)->tensors[0].offset;
  std::mt19937 random(7);
  int opened = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string bytes = whole;
    for (int flips = 1 + random() % 2; flips > 0; --flips) {
      bytes[random() % header] = "0123456789{}[],:\"F\xff\0"[random() % 20];
    }
    const absl::StatusOr<SafetensorsFile> file = OpenBytes(bytes);
    if (!file.ok()) {
      ErrorOf(file);
      continue;
    }
    ++opened;
    for (const TensorInfo& tensor : file->tensors) {
      ASSERT_LE(tensor.offset + tensor.bytes, bytes.size());
    }
  }
  EXPECT_GT(opened, 20);  // the damage sometimes hits only a name
}

}  // namespace
}  // namespace millrace
