#include "base/log_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/strings.h"

namespace millrace {
namespace {

class LogWriterTest : public testing::Test {
 protected:
  LogWriterTest() {
    EXPECT_EQ(pipe(ends_.data()), 0);
    signal(SIGPIPE, SIG_IGN);
  }
  ~LogWriterTest() override { CloseReader(); }

  void CloseReader() {
    if (ends_[0] >= 0) close(std::exchange(ends_[0], -1));
  }
  std::string ReadSome() const {
    std::array<char, 65536> buffer;
    const ssize_t got = read(ends_[0], buffer.data(), buffer.size());
    return got > 0 ? std::string(buffer.data(), static_cast<size_t>(got)) : "";
  }

  std::array<int, 2> ends_;
};

std::string LostLine(uint64_t dropped) { return StrCat("lost ", dropped, "\n"); }

TEST_F(LogWriterTest, ALineIsThereWhenTheCallReturns) {
  LogWriter writer(ends_[1], LostLine);
  writer.Write("one\n");
  EXPECT_EQ(ReadSome(), "one\n");
  EXPECT_TRUE(writer.Flush(Duration::zero()));
}

TEST_F(LogWriterTest, AReaderThatDoesNotReadHoldsUpNobody) {
  LogWriter writer(ends_[1], LostLine);
  constexpr int kLines = 40'000;
  const std::string rest(90, 'x');
  for (int i = 0; i < kLines; ++i) writer.Write(StrCat(i, " ", rest, "\n"));
  EXPECT_FALSE(writer.Flush(std::chrono::milliseconds(1)));
  const uint64_t dropped = writer.dropped();
  EXPECT_GT(dropped, 0u);
  EXPECT_LT(dropped, static_cast<uint64_t>(kLines));

  // Once it reads, it gets what was kept, in its order, and then learns of the rest. The thread
  // takes a line out of a full queue when it begins, so one that comes later may find room again.
  std::string text;
  while (text.find("lost ") == text.npos) text += ReadSome();
  const std::vector<std::string_view> lines = SplitList(text, '\n');
  ASSERT_EQ(lines.size(), kLines - dropped + 1);
  int before = -1;
  for (size_t i = 0; i + 1 < lines.size(); ++i) {
    const std::optional<int> number = ParseNumber<int>(lines[i].substr(0, lines[i].find(' ')));
    ASSERT_TRUE(number.has_value()) << lines[i];
    ASSERT_GT(*number, before);
    ASSERT_EQ(lines[i], StrCat(*number, " ", rest));
    before = *number;
  }
  EXPECT_EQ(lines.back(), StrCat("lost ", dropped));
  EXPECT_TRUE(writer.Flush(std::chrono::seconds(60)));
  writer.Write("after\n");
  EXPECT_EQ(ReadSome(), "after\n");
}

TEST_F(LogWriterTest, ALineLongerThanThePipeComesWhole) {
  LogWriter writer(ends_[1], LostLine);
  const std::string line = std::string(300'000, 'y') + "\n";
  writer.Write(line);
  writer.Write("next\n");
  std::string text;
  while (text.size() < line.size() + 5) text += ReadSome();
  EXPECT_EQ(text, line + "next\n");
  EXPECT_EQ(writer.dropped(), 0u);
}

TEST_F(LogWriterTest, AReaderThatIsGoneIsNoReasonToWait) {
  LogWriter writer(ends_[1], LostLine);
  writer.Write(std::string(300'000, 'z'));
  CloseReader();
  for (int i = 0; i < 1000; ++i) writer.Write("line\n");
  EXPECT_TRUE(writer.Flush(std::chrono::seconds(60)));
}

TEST_F(LogWriterTest, WhatAFullDiskRefusesIsCounted) {
  const int full = open("/dev/full", O_WRONLY);
  ASSERT_GE(full, 0);
  LogWriter writer(full, LostLine);
  for (int i = 0; i < 3; ++i) writer.Write("line\n");
  writer.Write(std::string(10'000, 'z') + "\n");  // by the thread
  EXPECT_TRUE(writer.Flush(std::chrono::seconds(60)));
  EXPECT_EQ(writer.dropped(), 4u);
  close(full);
}

// The largest size of a file (ulimit -f) stands for a disk that fills up and is emptied.
TEST_F(LogWriterTest, ALineThatAFullDiskCutsIsEndedBeforeTheNext) {
  signal(SIGXFSZ, SIG_IGN);
  const std::string path = testing::TempDir() + "/log_writer_test_full";
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  ASSERT_GE(file, 0);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto set_most = [&](rlim_t most) {
    const rlimit limit = {.rlim_cur = most, .rlim_max = before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  };
  LogWriter writer(file, LostLine);
  set_most(8);
  writer.Write("one\n");
  writer.Write("and two\n");
  EXPECT_TRUE(writer.Flush(std::chrono::seconds(60)));
  writer.Write("three\n");
  EXPECT_EQ(writer.dropped(), 2u);
  set_most(before.rlim_cur);
  writer.Write("four\n");
  writer.Write("five\n");
  std::ifstream read(path);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(read), {}),
            "one\nand \nfour\nlost 2\nfive\n");
  close(file);
}

TEST_F(LogWriterTest, LinesOfManyThreadsStayWhole) {
  std::vector<std::thread> threads;
  std::string text;
  {
    LogWriter writer(ends_[1], LostLine);
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&writer, t] {
        for (int i = 0; i < 500; ++i) writer.Write(StrCat(std::string(50, 'a' + t), "\n"));
      });
    }
    while (text.size() < size_t{4} * 500 * 51) text += ReadSome();
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(writer.dropped(), 0u);
  }
  for (const std::string_view line : SplitList(text, '\n')) {
    ASSERT_EQ(line, std::string(50, line[0]));
  }
}

}  // namespace
}  // namespace millrace
