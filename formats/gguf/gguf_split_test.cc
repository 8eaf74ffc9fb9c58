#include "formats/gguf/gguf_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/strings.h"
#include "formats/gguf/gguf.h"
#include "formats/twins/gguf_test_util.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(GgufSplitTest, NamesOfParts) {
  const auto part = ParseGgufPart("a/m-Q4_0-00002-of-00003.gguf");
  ASSERT_TRUE(part.has_value());
  EXPECT_EQ(part->prefix, "a/m-Q4_0");
  EXPECT_EQ(part->number, 2);
  EXPECT_THAT(part->Names(),
              ElementsAre("a/m-Q4_0-00001-of-00003.gguf", "a/m-Q4_0-00002-of-00003.gguf",
                          "a/m-Q4_0-00003-of-00003.gguf"));
  for (const char* name :
       {"", "m.gguf", "-00001-of-00002.gguf", "m-00000-of-00002.gguf", "m-00003-of-00002.gguf",
        "m-00001-of-99999.gguf", "m-0001-of-00002.gguf", "m-+0001-of-00002.gguf",
        "m_00001-of-00002.gguf", "m-00001-of-00002.bin"}) {
    EXPECT_FALSE(ParseGgufPart(name).has_value()) << name;
  }
}

class SplitFileTest : public ::testing::Test {
 protected:
  SplitFileTest() { std::filesystem::create_directories(folder_); }
  ~SplitFileTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(int number, int count = 3) const {
    return GgufPart{folder_ + "/m", number, count}.Name(number);
  }

  // Part `number`, from 1, with a tensor of this name whose elements are the number.
  static GgufWriter Part(int number, const std::string& tensor, int tensors_of_all, int count) {
    GgufWriter writer;
    writer.Raw("split.no", 2, Bytes(number - 1, 2)).Raw("split.count", 2, Bytes(count, 2));
    writer.Int32("split.tensors.count", tensors_of_all);
    if (number == 1) writer.String("general.name", "whole");
    const std::vector<float> values(32, static_cast<float>(number));
    if (!tensor.empty()) writer.Tensor(tensor, TensorType::kF32, {32}, values);
    return writer;
  }
  // Writes such a part by a name that says that there are 3.
  void Write(int number, const std::string& tensor, int tensors_of_all = 2, int count = 3) const {
    Part(number, tensor, tensors_of_all, count).Write(Path(number));
  }

  static std::string Bytes(int value, size_t size) {
    return std::string(reinterpret_cast<const char*>(&value), size);
  }

  std::string Error(int number = 1) const {
    const absl::Status status = GgufFile::Open(Path(number)).status();
    std::string message = status.ok() ? "no error" : std::string(status.message());
    EXPECT_THAT(message, Not(HasSubstr(folder_)));
    return message;
  }

  const std::string folder_ = StrCat(::testing::TempDir(), "gguf_split_test_", getpid());
};

TEST_F(SplitFileTest, ReadsTheTensorsOfAllFiles) {
  Write(1, "");  // as `gguf-split --no-tensor-first-split` has it
  Write(2, "b");
  Write(3, "c");
  absl::StatusOr<GgufFile> opened = GgufFile::Open(Path(1));
  ASSERT_TRUE(opened.ok()) << opened.status();
  const GgufFile file = *std::move(opened);
  EXPECT_EQ(*file.String("general.name"), "whole");
  ASSERT_EQ(file.tensors().size(), 2);
  for (const auto& [name, value] : {std::pair("b", 2.0f), std::pair("c", 3.0f)}) {
    const TensorInfo* tensor = file.FindTensor(name);
    ASSERT_NE(tensor, nullptr);
    float first;
    std::memcpy(&first, file.Data(*tensor).data(), sizeof(first));
    EXPECT_EQ(first, value);
    first = 0;
    ASSERT_EQ(pread(file.FileDescriptor(*tensor), &first, sizeof(first),
                    static_cast<off_t>(tensor->offset)),
              static_cast<ssize_t>(sizeof(first)));
    EXPECT_EQ(first, value);
    file.DropPages(*tensor);
  }
  file.DropPages();
}

TEST_F(SplitFileTest, AFileThatIsMissingOrAnothersIsNamed) {
  Write(1, "a", 3);
  Write(2, "b", 3);
  EXPECT_THAT(Error(), HasSubstr("m-00003-of-00003.gguf: open: No such file"));
  std::filesystem::copy(Path(2), Path(3));
  EXPECT_THAT(Error(), HasSubstr("m-00003-of-00003.gguf: key split.no: 1, must be 2"));
  Write(3, "b", 3);
  EXPECT_THAT(Error(), HasSubstr("m-00003-of-00003.gguf: tensor b: comes twice"));
  EXPECT_THAT(Error(2), HasSubstr("m-00002-of-00003.gguf: is file 2 of 3: name the first of them"));
  Write(3, "", 3);
  EXPECT_THAT(Error(), HasSubstr("split.tensors.count: 3 tensors, but the 3 files have 2"));
  Write(3, "c", 3);
  EXPECT_EQ(Error(), "no error");
}

TEST_F(SplitFileTest, APartThatIsNoneIsNamed) {
  Write(1, "a");
  Write(2, "b");
  const auto error = [&](const auto& write) {
    std::filesystem::remove_all(Path(3));
    write();
    return Error();
  };
  const std::string name = "m-00003-of-00003.gguf: ";
  EXPECT_EQ(error([&] { Write(3, "", 2, 4); }), name + "key split.count: 4, must be 3");
  EXPECT_EQ(error([&] { GgufWriter().Write(Path(3)); }), name + "key split.no is missing");
  EXPECT_EQ(error([&] { std::filesystem::create_directories(Path(3)); }),
            name + "not a regular file");
  EXPECT_EQ(error([&] { std::filesystem::create_symlink("nowhere", Path(3)); }),
            name + "open: No such file or directory");
  EXPECT_EQ(error([&] { WriteFile(Path(3), ""); }), name + "the file is empty");
  const std::string whole = Part(3, "c", 3, 3).Bytes();
  for (size_t size = 1; size < whole.size(); ++size) {
    EXPECT_THAT(error([&] { WriteFile(Path(3), whole.substr(0, size)); }), StartsWith(name));
  }
  Write(1, "a", 3);
  EXPECT_EQ(error([&] { WriteFile(Path(3), whole); }), "no error");
}

TEST_F(SplitFileTest, NumbersOfFilesThatMakeNoSenseAreRefused) {
  Write(1, "a", 2, 65'535);
  EXPECT_EQ(Error(), "m-00001-of-00003.gguf: key split.count: 65535 is outside of 0 to 1024");
  GgufWriter().String("split.count", "3").Write(Path(1));
  EXPECT_EQ(Error(), "m-00001-of-00003.gguf: key split.count: is a string, must be an integer");
  GgufWriter().Int32("split.count", 3).Int32("split.no", 3).Write(Path(1));
  EXPECT_EQ(Error(), "m-00001-of-00003.gguf: key split.no: 3 is outside of 0 to 2");
  GgufWriter().Int32("split.count", 3).Int32("split.no", -1).Write(Path(1));
  EXPECT_EQ(Error(), "m-00001-of-00003.gguf: key split.no: -1 is outside of 0 to 2");
  // A model of one file is whole, whatever its name.
  Write(1, "a", 1, 1);
  EXPECT_EQ(Error(), "no error");
}

TEST_F(SplitFileTest, ANameThatDoesNotLeadToTheOthersIsRefused) {
  Write(1, "a");
  const std::string other = folder_ + "/other.gguf";
  std::filesystem::copy(Path(1), other);
  EXPECT_THAT(std::string(GgufFile::Open(other).status().message()),
              HasSubstr("other.gguf: is file 1 of 3, must have a name like m-00001-of-00003.gguf"));
  std::filesystem::copy(Path(1), Path(1, 4));
  EXPECT_THAT(std::string(GgufFile::Open(Path(1, 4)).status().message()),
              HasSubstr("m-00001-of-00004.gguf: is file 1 of 3, must have a name like"));
}

}  // namespace
}  // namespace millrace
