#include "formats/files/mapped_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "formats/files/shrunk_files.h"

namespace millrace {
namespace {

std::string WriteFile(const std::string& name) {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path) << std::string(100'000, 'x');
  return path;
}

// Reads every byte, in the child of a death test.
void ReadAfterItShrank(const std::string& path) {
  absl::StatusOr<MappedFile> opened = MappedFile::Open(path);
  if (!opened.ok() || truncate(path.c_str(), 10) != 0) _exit(99);
  ExplainShrunkFiles();
  const MappedFile moved = *std::move(opened);
  _exit(std::accumulate(moved.bytes().begin(), moved.bytes().end(), 0) == 0 ? 98 : 97);
}

TEST(MappedFileTest, AFileThatShrinksIsNamed) {
  EXPECT_EXIT(ReadAfterItShrank(WriteFile("mapped_file_test.shrinks")), testing::ExitedWithCode(1),
              "millraced: mapped_file_test.shrinks: the file has shrunk");
}

TEST(MappedFileTest, AnotherCauseOfABusErrorIsNotExplained) {
  const auto touch = [] {
    ExplainShrunkFiles();
    const std::string path = WriteFile("mapped_file_test.other");
    std::optional<MappedFile> file = *MappedFile::Open(path);
    const int fd = dup(file->fd());
    file.reset();
    const auto* const other =
        static_cast<const volatile uint8_t*>(mmap(nullptr, 100'000, PROT_READ, MAP_PRIVATE, fd, 0));
    if (other == MAP_FAILED || truncate(path.c_str(), 0) != 0) _exit(99);
    _exit(other[50'000]);
  };
  EXPECT_EXIT(touch(), testing::KilledBySignal(SIGBUS), "^$");
}

}  // namespace
}  // namespace millrace
