#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/log_fields.h"

namespace millrace {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::MatchesRegex;

constexpr Logger kEngine(LogComponent::kEngine);
constexpr Logger kHttp(LogComponent::kHttp);

class LogTest : public testing::Test {
 protected:
  ~LogTest() override {
    SetLogLevels("info").IgnoreError();
    SetLogFormat(LogFormat::kText);
  }

  // Returns the lines that `body` writes to stderr.
  template <typename Body>
  static std::vector<std::string> Lines(Body body) {
    testing::internal::CaptureStderr();
    body();
    return absl::StrSplit(testing::internal::GetCapturedStderr(), '\n', absl::SkipEmpty());
  }
};

TEST_F(LogTest, TextLine) {
  const auto lines = Lines([] {
    kEngine.Info("took ", 3, " of ", 4.5);
    kHttp.ForRequest("cmpl-7").Warning("slow client");
  });
  ASSERT_EQ(lines.size(), 2u);
  const std::string time = R"(20..-..-..T..:..:..\....Z )";
  EXPECT_THAT(lines[0], MatchesRegex(time + R"(info engine took 3 of 4\.5)"));
  EXPECT_THAT(lines[1], MatchesRegex(time + R"(warning http \[cmpl-7\] slow client)"));
}

TEST_F(LogTest, JsonLine) {
  SetLogFormat(LogFormat::kJson);
  const auto lines = Lines([] {
    kEngine.Error("out of blocks");
    kHttp.ForRequest("a\"b").Info("x");
  });
  ASSERT_EQ(lines.size(), 2u);
  const std::string time = R"(\{"time":"20..-..-..T..:..:..\....Z",)";
  EXPECT_THAT(
      lines[0],
      MatchesRegex(time + R"("level":"error","component":"engine","message":"out of blocks"\})"));
  EXPECT_THAT(
      lines[1],
      MatchesRegex(time +
                   R"("level":"info","component":"http","request_id":"a\\"b","message":"x"\})"));
}

TEST_F(LogTest, FieldsAreMembersOfAJsonLineAlone) {
  const std::vector<LogField> fields = {
      {"status", "200", true}, {"took", "1.5", true}, {"who", "a \"b\"\n"}};
  const auto text =
      Lines([&] { LogWithFields(LogLevel::kInfo, LogComponent::kHttp, "", "done", fields); });
  ASSERT_EQ(text.size(), 1u);
  EXPECT_THAT(text[0], EndsWith(" http done"));
  SetLogFormat(LogFormat::kJson);
  const auto json = Lines([&] {
    LogWithFields(LogLevel::kInfo, LogComponent::kHttp, "7", "done", fields);
    LogWithFields(LogLevel::kDebug, LogComponent::kHttp, "", "not shown", fields);
  });
  ASSERT_EQ(json.size(), 1u);
  EXPECT_THAT(json[0], EndsWith(R"("request_id":"7","message":"done","status":200,"took":1.5,)"
                                R"("who":"a \"b\"\n"})"));
}

struct Escape {
  std::string message;
  std::string json;
  std::string text;
};

// Any message gives one line of valid JSON without control characters.
TEST_F(LogTest, Escapes) {
  const Escape escapes[] = {
      {"a\nb\r\tc", R"(a\nb\r\tc)", R"(a\nb\r\tc)"},
      {"say \"hi\" \\", R"(say \"hi\" \\)", R"(say "hi" \)"},
      {std::string("nul\0x", 5), R"(nul\u0000x)", R"(nul\u0000x)"},
      {"\x1b[31mred\x7f", R"(\u001b[31mred\u007f)", R"(\u001b[31mred\u007f)"},
      {"\xc2\x9b"
       "c1",
       R"(\u009bc1)", R"(\u009bc1)"},
      {"é 漢 😀", "é 漢 😀", "é 漢 😀"},
      {"%v {} %s", "%v {} %s", "%v {} %s"},
      // Invalid UTF-8: a stray continuation byte, an overlong slash, a surrogate, a code point
      // beyond U+10FFFF, and a truncated sequence.
      {"\x80|", "\uFFFD|", "\uFFFD|"},
      {"\xc0\xaf|", "\uFFFD\uFFFD|", "\uFFFD\uFFFD|"},
      {"\xed\xa0\x80|", "\uFFFD\uFFFD\uFFFD|", "\uFFFD\uFFFD\uFFFD|"},
      {"\xf4\x90\x80\x80|", "\uFFFD\uFFFD\uFFFD\uFFFD|", "\uFFFD\uFFFD\uFFFD\uFFFD|"},
      {"\xe6\xbc", "\uFFFD\uFFFD", "\uFFFD\uFFFD"},
  };
  for (const Escape& escape : escapes) {
    SetLogFormat(LogFormat::kJson);
    auto lines = Lines([&] { kHttp.Info(escape.message); });
    ASSERT_EQ(lines.size(), 1u) << escape.json;
    EXPECT_THAT(lines[0], EndsWith("\"message\":\"" + escape.json + "\"}"));
    SetLogFormat(LogFormat::kText);
    lines = Lines([&] { kHttp.Info(escape.message); });
    ASSERT_EQ(lines.size(), 1u) << escape.text;
    EXPECT_THAT(lines[0], EndsWith("info http " + escape.text));
  }
}

TEST_F(LogTest, LevelsAreSetLiveForEachComponent) {
  const auto speak = [] {
    kEngine.Debug("engine debug");
    kHttp.Debug("http debug");
    kHttp.Info("http info");
    kHttp.Error("http error");
  };
  EXPECT_EQ(Lines(speak).size(), 2u);
  ASSERT_TRUE(SetLogLevels("warning,engine=debug").ok());
  EXPECT_THAT(Lines(speak), testing::ElementsAre(EndsWith("engine debug"), EndsWith("http error")));
  ASSERT_TRUE(SetLogLevels("http=off").ok());
  EXPECT_TRUE(Lines(speak).empty());
  EXPECT_FALSE(kHttp.Enabled(LogLevel::kError));
}

TEST_F(LogTest, LevelsReadBack) {
  ASSERT_TRUE(SetLogLevels(" engine=debug , error ").ok());
  const std::string levels = LogLevels();
  EXPECT_THAT(levels, HasSubstr("engine=debug"));
  EXPECT_THAT(levels, HasSubstr("http=error"));
  ASSERT_TRUE(SetLogLevels("").ok());
  EXPECT_THAT(LogLevels(), HasSubstr("engine=info"));
  ASSERT_TRUE(SetLogLevels(levels).ok());
  EXPECT_EQ(LogLevels(), levels);
}

TEST_F(LogTest, AWrongSpecIsRefusedWholeAndSaysWhy) {
  ASSERT_TRUE(SetLogLevels("warning").ok());
  const std::string before = LogLevels();
  const std::pair<const char*, const char*> wrong[] = {
      {"loud", "no log level \"loud\"; there are: debug, info, warning, error, off"},
      {"info,engnie=debug", "no log component \"engnie\"; there are: executors, engine, text,"},
      {"engine=", "no log level \"\""},
      {"debug,http=error,http=info", "\"http=info\" sets a level a second time"},
      {"debug,info", "\"info\" sets a level a second time"},
  };
  for (const auto& [spec, message] : wrong) {
    for (const absl::Status& status : {SetLogLevels(spec), CheckLogLevels(spec)}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << spec;
      EXPECT_THAT(std::string(status.message()), HasSubstr(message));
    }
  }
  EXPECT_EQ(LogLevels(), before);
}

TEST_F(LogTest, ThreadsDoNotMixTheirLines) {
  SetLogFormat(LogFormat::kJson);
  auto lines = Lines([] {
    std::array<std::thread, 4> threads;
    for (size_t i = 0; i < threads.size(); ++i) {
      threads[i] = std::thread([i] {
        for (int n = 0; n < 200; ++n) {
          kHttp.ForRequest(StrCat("r", i)).Info(std::string(300, static_cast<char>('a' + i)));
          if (n == 100) SetLogLevels("info,engine=error").IgnoreError();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  EXPECT_EQ(lines.size(), 800u);
  for (const std::string& line : lines) {
    const char request = line[line.find("\"request_id\":\"r") + 15];
    EXPECT_THAT(line, EndsWith("\"message\":\"" + std::string(300, 'a' + (request - '0')) + "\"}"));
  }
}

}  // namespace
}  // namespace millrace
