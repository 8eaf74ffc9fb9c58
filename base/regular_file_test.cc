#include "base/regular_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/strings.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class RegularFileTest : public testing::Test {
 protected:
  RegularFileTest()
      : folder_(StrCat(testing::TempDir(), "/regular_",
                       testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  std::string Path(const char* name) const { return (folder_ / name).string(); }
  std::string Write(const char* name, const std::string& text) const {
    std::ofstream(Path(name), std::ios::binary) << text;
    return Path(name);
  }
  static absl::Status Error(const std::string& path) {
    return ReadRegularFile(path, 1 << 20).status();
  }

  const fs::path folder_;
};

TEST_F(RegularFileTest, ReadsAllBytesUpToTheLimit) {
  std::string text(200'000, 'x');
  text[7] = '\0';
  EXPECT_EQ(*ReadRegularFile(Write("some", text), text.size()), text);
  EXPECT_EQ(*ReadRegularFile(Write("none", ""), 0), "");
  const absl::Status more = ReadRegularFile(Path("some"), text.size() - 1).status();
  EXPECT_TRUE(absl::IsOutOfRange(more));
  EXPECT_EQ(more.message(), "it has 200000 bytes; allowed: at most 199999");
}

TEST_F(RegularFileTest, AFileOfTheSystemThatTellsNoSizeIsBoundedToo) {
  EXPECT_FALSE(ReadRegularFile("/proc/self/status", 1 << 20)->empty());
  EXPECT_TRUE(absl::IsOutOfRange(ReadRegularFile("/proc/self/status", 10).status()));
}

// As Kubernetes lays them out: file -> ..data/file, ..data -> a folder that is replaced.
TEST_F(RegularFileTest, FollowsLinks) {
  fs::create_directories(folder_ / "..2024");
  Write("..2024/keys", "one");
  fs::create_directory_symlink("..2024", folder_ / "..data");
  fs::create_symlink("..data/keys", folder_ / "keys");
  EXPECT_EQ(*ReadRegularFile(Path("keys"), 10), "one");
}

TEST_F(RegularFileTest, WaitsForNothingThatIsNoFile) {
  ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
  EXPECT_THAT(std::string(Error(Path("fifo")).message()), HasSubstr("it is a FIFO; allowed: a"));
  fs::create_symlink("fifo", folder_ / "link");
  EXPECT_THAT(std::string(Error(Path("link")).message()), HasSubstr("it is a FIFO"));
  EXPECT_THAT(std::string(Error("/dev/zero").message()), HasSubstr("it is a device"));
  EXPECT_THAT(std::string(Error(folder_).message()), HasSubstr("Is a directory"));
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
  const fs::path before = fs::current_path();
  fs::current_path(folder_);  // the address has room for a short path
  std::copy_n("socket", sizeof("socket"), address.sun_path);
  ASSERT_EQ(bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  fs::current_path(before);
  EXPECT_THAT(std::string(Error(Path("socket")).message()), HasSubstr("it is a socket"));
  close(socket);
}

TEST_F(RegularFileTest, TellsWhatIsNotThereFromWhatMayNotBeRead) {
  EXPECT_TRUE(absl::IsNotFound(Error(Path("none"))));
  EXPECT_TRUE(absl::IsNotFound(Error(Write("file", "") + "/below")));
  fs::create_symlink("round", folder_ / "round");
  EXPECT_TRUE(absl::IsUnavailable(Error(Path("round"))));
}

}  // namespace
}  // namespace millrace
