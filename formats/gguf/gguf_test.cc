#include "formats/gguf/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "formats/twins/gguf_test_util.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Path() { return StrCat(::testing::TempDir(), "gguf_test_", getpid(), ".gguf"); }

class GgufTest : public ::testing::Test {
 protected:
  ~GgufTest() override { unlink(Path().c_str()); }

  static absl::StatusOr<GgufFile> OpenBytes(std::string_view bytes) {
    WriteFile(Path(), bytes);
    return GgufFile::Open(Path());
  }
  static absl::StatusOr<GgufFile> Open(const GgufWriter& writer) {
    return OpenBytes(writer.Bytes());
  }

  // The message of the error, which must start with the file's base name and not show its folder.
  static std::string ErrorOf(const absl::StatusOr<GgufFile>& file) {
    if (file.ok()) return "no error";
    std::string message(file.status().message());
    EXPECT_THAT(message, StartsWith(Path().substr(Path().find_last_of('/') + 1)));
    EXPECT_THAT(message, ::testing::Not(HasSubstr(::testing::TempDir())));
    return message;
  }
};

std::string Number(uint64_t value, int bytes) {
  return std::string(reinterpret_cast<const char*>(&value), bytes);
}

TEST_F(GgufTest, ReadsEveryTypeOfMetadata) {
  GgufWriter writer;
  writer.Raw("u8", 0, Number(200, 1)).Raw("i8", 1, Number(-5, 1)).Raw("u16", 2, Number(60000, 2));
  writer.Raw("i16", 3, Number(-3000, 2))
      .Uint32("u32", 4000000000u)
      .Int32("i32", -7)
      .Float32("f32", 0.5f);
  writer.Bool("yes", true).Bool("no", false).String("text", "héllo").Uint64("u64", 1ull << 40);
  writer.Raw("i64", 11, Number(-1, 8)).Raw("f64", 12, Number(0x3ff8000000000000, 8));
  writer.Strings("words", {"a", "", "ccc"}).Int32s("ids", {3, -1, 2}).Strings("none", {});
  for (const uint32_t version : {2, 3}) {
    const absl::StatusOr<GgufFile> file = OpenBytes(writer.Bytes(version));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(*file->Int("u8", 0, 255), 200);
    EXPECT_EQ(*file->Int("i8", -10, 255), -5);
    EXPECT_EQ(*file->Int("u16", 0, 1 << 20), 60000);
    EXPECT_EQ(*file->Int("i16", -3000, 0), -3000);
    EXPECT_EQ(*file->Int("u32", 0, 1ll << 40), 4000000000);
    EXPECT_EQ(*file->Int("i32", -7, -7), -7);
    EXPECT_EQ(*file->Int("u64", 0, 1ll << 40), 1ll << 40);
    EXPECT_EQ(*file->Int("i64", -1, 1), -1);
    EXPECT_EQ(*file->Float("f32"), 0.5);
    EXPECT_EQ(*file->Float("f64"), 1.5);
    EXPECT_TRUE(*file->Bool("yes"));
    EXPECT_FALSE(*file->Bool("no"));
    EXPECT_EQ(*file->String("text"), "héllo");
    EXPECT_THAT(*file->Strings("words"), ElementsAre("a", "", "ccc"));
    EXPECT_TRUE(file->Strings("none")->empty());
    EXPECT_THAT(*file->Int32s("ids"), ElementsAre(3, -1, 2));
  }
}

TEST_F(GgufTest, GettersNameTheKeyAndWhatIsAllowed) {
  GgufWriter writer;
  writer.Uint32("n", 9).String("s", "x").Uint64("huge", ~0ull).Float32s("floats", {1.0f});
  writer.Float32("nan", __builtin_nanf(""));
  const absl::StatusOr<GgufFile> file = Open(writer);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->Int("missing", 0, 1).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(file->Int("missing", 0, 1).status().message()),
              HasSubstr("key missing is missing"));
  EXPECT_THAT(std::string(file->Int("n", 0, 8).status().message()),
              HasSubstr("key n: 9 is outside of 0 to 8"));
  EXPECT_THAT(std::string(file->Int("huge", 0, 8).status().message()),
              HasSubstr("18446744073709551615"));
  EXPECT_THAT(std::string(file->Int("s", 0, 8).status().message()),
              HasSubstr("key s: is a string, must be an integer"));
  EXPECT_FALSE(file->String("n").ok());
  EXPECT_FALSE(file->Bool("n").ok());
  EXPECT_FALSE(file->Float("nan").ok());
  EXPECT_THAT(std::string(file->Strings("floats").status().message()),
              HasSubstr("array of float32"));
  EXPECT_THAT(std::string(file->Int32s("floats").status().message()),
              HasSubstr("must be of int32"));
}

TEST_F(GgufTest, ReadsTensorsOfEachType) {
  std::vector<float> values(3 * 64);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 37) * 0.25f - 3;
  GgufWriter writer;
  for (const TensorType type :
       {TensorType::kF32, TensorType::kF16, TensorType::kQ8_0, TensorType::kQ4_1}) {
    writer.Tensor(Traits(type).name, type, {3, 64}, values);
  }
  absl::StatusOr<GgufFile> opened = Open(writer);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const GgufFile file = *std::move(opened);  // views must survive the move
  ASSERT_EQ(file.tensors().size(), 4u);
  EXPECT_EQ(file.FindTensor("Q6_K"), nullptr);
  for (const TensorInfo& tensor : file.tensors()) {
    EXPECT_EQ(file.FindTensor(tensor.name), &tensor);
    EXPECT_THAT(tensor.shape, ElementsAre(3, 64));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(file.Data(tensor).data()) % 32, 0u);
    const std::vector<float> decoded = DecodeTensor(tensor.type, file.Data(tensor));
    ASSERT_EQ(decoded.size(), values.size());
    const float tolerance = tensor.type == TensorType::kQ4_1   ? 0.31f
                            : tensor.type == TensorType::kQ8_0 ? 0.03f
                                                               : 0;
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(decoded[i], values[i], tolerance) << tensor.name;
    file.DropPages(tensor);
    EXPECT_EQ(DecodeTensor(tensor.type, file.Data(tensor)), decoded);
  }
  file.DropPages();
  EXPECT_EQ(file.tensors()[0].name, "F32");
}

TEST_F(GgufTest, RefusesWhatIsNotGguf) {
  EXPECT_EQ(GgufFile::Open("/nonexistent/x.gguf").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(GgufFile::Open("/tmp").status().message()),
              HasSubstr("tmp: not a regular file"));
  EXPECT_THAT(ErrorOf(OpenBytes("")), HasSubstr("empty"));
  EXPECT_THAT(ErrorOf(OpenBytes("GG")), HasSubstr("magic"));
  EXPECT_THAT(ErrorOf(OpenBytes("PK\3\4 a zip file, rather")), HasSubstr("magic"));
  EXPECT_THAT(ErrorOf(OpenBytes(GgufWriter().Bytes(1))), HasSubstr("version: 1"));
  EXPECT_TRUE(OpenBytes(GgufWriter().Bytes()).ok());
}

TEST_F(GgufTest, RefusesLyingCounts) {
  EXPECT_THAT(ErrorOf(OpenBytes("GGUF" + Number(3, 4) + Number(~0ull, 8) + Number(0, 8))),
              HasSubstr("tensor count: 18446744073709551615"));
  EXPECT_THAT(ErrorOf(OpenBytes("GGUF" + Number(3, 4) + Number(0, 8) + Number(1ull << 60, 8))),
              HasSubstr("metadata count"));
  EXPECT_THAT(ErrorOf(Open(GgufWriter().Raw("k", 8, Number(1ull << 63, 8)))), HasSubstr("key k"));
  EXPECT_THAT(ErrorOf(Open(GgufWriter().Raw("k", 9, Number(5, 4) + Number(1ull << 62, 8)))),
              HasSubstr("key k: 4611686018427387904 elements do not fit"));
  EXPECT_THAT(ErrorOf(Open(GgufWriter().Raw(
                  "k", 9, Number(8, 4) + Number(2, 8) + Number(0, 8) + Number(99, 8)))),
              HasSubstr("key k[1]"));
}

TEST_F(GgufTest, RefusesLyingMetadata) {
  EXPECT_THAT(ErrorOf(Open(GgufWriter().Raw("k", 13, ""))),
              HasSubstr("key k: value type 13 is unknown"));
  EXPECT_THAT(ErrorOf(Open(GgufWriter().Raw("k", 9, Number(77, 4) + Number(0, 8)))),
              HasSubstr("element type 77"));
  EXPECT_THAT(ErrorOf(Open(GgufWriter().Raw("k", 9, Number(9, 4) + Number(0, 8)))),
              HasSubstr("arrays of arrays"));
  EXPECT_THAT(ErrorOf(Open(GgufWriter().Raw("k", 7, Number(2, 1)))), HasSubstr("must be 0 or 1"));
  EXPECT_THAT(ErrorOf(Open(GgufWriter().Uint32("k", 1).Uint32("k", 2))),
              HasSubstr("key k: comes twice"));
  EXPECT_THAT(ErrorOf(Open(GgufWriter().Uint32("", 1))), HasSubstr("metadata key 0"));
  EXPECT_THAT(ErrorOf(Open(GgufWriter().Uint32("general.alignment", 48))),
              HasSubstr("not a power of two"));
  EXPECT_THAT(ErrorOf(Open(GgufWriter().Uint32("general.alignment", 0))),
              HasSubstr("outside of 8"));
  EXPECT_THAT(ErrorOf(Open(GgufWriter().Uint32("a\nb\x01", 1).Uint32("a\nb\x01", 1))),
              HasSubstr("a\\nb\\x01"));
}

TEST_F(GgufTest, RefusesLyingTensors) {
  const std::string data(64, 'x');
  const auto error = [&](uint32_t type, std::vector<int64_t> shape, int64_t offset) {
    return ErrorOf(Open(GgufWriter().RawTensor("t", type, std::move(shape), data, offset)));
  };
  EXPECT_EQ(error(0, {16}, 0), "no error");
  EXPECT_THAT(error(34, {256}, 0), HasSubstr("tensor t: type TQ1_0 is not supported"));
  EXPECT_THAT(error(999, {256}, 0), HasSubstr("type 999 is not supported"));
  EXPECT_THAT(error(0, {}, 0), HasSubstr("0 dimensions"));
  EXPECT_THAT(error(0, {1, 1, 1, 1, 1}, 0), HasSubstr("5 dimensions"));
  EXPECT_THAT(error(0, {4, 0}, 0), HasSubstr("a dimension is 0"));
  EXPECT_THAT(error(0, {1ll << 32, 1ll << 32}, 0), HasSubstr("more elements than"));
  EXPECT_THAT(error(0, {-1, 2}, 0), HasSubstr("more elements than"));
  EXPECT_THAT(error(3, {2, 48}, 0), HasSubstr("multiple of 32 for Q4_1"));
  EXPECT_THAT(error(0, {17}, 0), HasSubstr("is beyond the file's"));
  EXPECT_THAT(error(0, {16}, 32), HasSubstr("offset 32 + 64 bytes is beyond the file's"));
  EXPECT_THAT(error(0, {16}, 1ll << 62), HasSubstr("beyond"));
  EXPECT_THAT(error(0, {8}, 4), HasSubstr("offset 4 is not a multiple of the alignment 32"));
  const auto two = [&](std::string_view second, int64_t offset) {
    return ErrorOf(
        Open(GgufWriter().RawTensor("t", 0, {16}, data).RawTensor(second, 0, {16}, data, offset)));
  };
  EXPECT_EQ(two("u", -1), "no error");
  EXPECT_THAT(two("t", -1), HasSubstr("tensor t: comes twice"));
  EXPECT_THAT(two("u", 32), HasSubstr("tensor u: offset lies inside tensor t"));
}

// Some of everything, with a short header.
GgufWriter SmallFile() {
  GgufWriter writer;
  writer.Uint32("general.alignment", 32).Raw("u8", 0, Number(200, 1)).Uint64("u64", 7);
  writer.Float32("f32", 0.5f).Bool("yes", true).String("text", "some text of some length");
  writer.Strings("words", {"a", "", "ccc", "four"}).Int32s("ids", {3, -1, 2});
  const std::vector<float> values(64, 1.0f);
  for (const TensorType type :
       {TensorType::kF32, TensorType::kF16, TensorType::kQ8_0, TensorType::kQ4_1}) {
    writer.Tensor(Traits(type).name, type, {2, 32}, values);
  }
  return writer;
}

TEST_F(GgufTest, EveryTruncationIsAnError) {
  const std::string whole = SmallFile().Bytes();
  const absl::StatusOr<GgufFile> file = OpenBytes(whole);
  ASSERT_TRUE(file.ok()) << file.status();
  const size_t header = file->tensors()[0].offset;
  for (size_t size = 0; size < header; ++size) {
    ASSERT_NE(ErrorOf(OpenBytes(std::string_view(whole).substr(0, size))), "no error") << size;
  }
  const TensorInfo& last = file->tensors().back();
  ASSERT_NE(ErrorOf(OpenBytes(std::string_view(whole).substr(0, last.offset + last.bytes - 1))),
            "no error");
}

// Whatever a damaged header says, reading all that Open() hands out stays inside the file.
TEST_F(GgufTest, DamagedHeadersNeverLeadOutsideOfTheFile) {
  const std::string whole = SmallFile().Bytes();
  const size_t header = OpenBytes(whole)->tensors()[0].offset;
  std::mt19937 random(7);
  int opened = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string bytes = whole;
    for (int flips = 1 + random() % 3; flips > 0; --flips) {
      bytes[random() % header] = static_cast<char>(random() % 4 == 0 ? 0xff : random());
    }
    const absl::StatusOr<GgufFile> file = OpenBytes(bytes);
    if (!file.ok()) {
      ErrorOf(file);
      continue;
    }
    ++opened;
    const uint8_t* const begin = file->Data(file->tensors()[0]).data() - file->tensors()[0].offset;
    for (const TensorInfo& tensor : file->tensors()) {
      const absl::Span<const uint8_t> data = file->Data(tensor);
      ASSERT_LE(data.data() + data.size() - begin, static_cast<ptrdiff_t>(bytes.size()));
    }
  }
  EXPECT_GT(opened, 100);  // the damage often hits only a string
}

}  // namespace
}  // namespace millrace
