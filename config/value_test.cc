#include "config/value.h"

#include <gtest/gtest.h>

#include <chrono>

namespace millrace {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(ValueTest, Sizes) {
  const std::pair<const char*, int64_t> sizes[] = {{"0", 0},
                                                   {"4096", 4096},
                                                   {"1K", 1024},
                                                   {"1KB", 1000},
                                                   {"512MiB", 1 << 29},
                                                   {"2G", int64_t{2} << 30},
                                                   {"2GB", 2'000'000'000},
                                                   {"3TiB", int64_t{3} << 40},
                                                   {"9223372036854775807", INT64_MAX}};
  for (const auto& [text, bytes] : sizes) EXPECT_EQ(ParseSize(text), bytes) << text;
  for (const char* wrong : {"", "G", "-1", "+1", "1.5G", "1 G", "1g", "1GiBs", "1Gi", "1iB", "1B",
                            "1P", "9223372036854775808", "8388608T", "1e9", "0x10"}) {
    EXPECT_EQ(ParseSize(wrong), std::nullopt) << wrong;
  }
  EXPECT_EQ(FormatSize(int64_t{1} << 30), "1GiB");
  EXPECT_EQ(FormatSize(1536), "1536");
  EXPECT_EQ(FormatSize(2048), "2KiB");
  EXPECT_EQ(FormatSize(0), "0");
}

TEST(ValueTest, Durations) {
  const std::pair<const char*, Duration> durations[] = {{"0", seconds(0)},
                                                        {"30", seconds(30)},
                                                        {"30s", seconds(30)},
                                                        {"500ms", milliseconds(500)},
                                                        {"2.5", milliseconds(2500)},
                                                        {"1m30s", seconds(90)},
                                                        {"1h", std::chrono::hours(1)}};
  for (const auto& [text, duration] : durations) EXPECT_EQ(ParseDuration(text), duration) << text;
  for (const char* wrong : {"", "s", "-1s", "+1s", "inf", "infs", "1 s", "1x", "1.2.3", "0.0001",
                            "1us", "1e3", ".5", "99999999999h", "9000h"}) {
    EXPECT_EQ(ParseDuration(wrong), std::nullopt) << wrong;
  }
  EXPECT_EQ(FormatDuration(seconds(30)), "30s");
  EXPECT_EQ(FormatDuration(milliseconds(2500)), "2.5s");
}

TEST(ValueTest, Bools) {
  for (const char* yes : {"true", "yes", "on", "1"}) EXPECT_EQ(ParseBool(yes), true);
  for (const char* no : {"false", "no", "off", "0"}) EXPECT_EQ(ParseBool(no), false);
  for (const char* wrong : {"", "True", "2", "y", "maybe"})
    EXPECT_EQ(ParseBool(wrong), std::nullopt);
}

TEST(ValueTest, BindAddresses) {
  EXPECT_EQ(ParseBindAddress("localhost"), "localhost");
  for (const char* address : {"127.0.0.1", "0.0.0.0", "::", "::1", "fe80::1", "::ffff:10.0.0.1"}) {
    EXPECT_EQ(ParseBindAddress(address), address);
  }
  for (const char* wrong :
       {"", "example.com", "127.1", "1.2.3.256", "[::1]", "127.0.0.1:80", "*"}) {
    EXPECT_EQ(ParseBindAddress(wrong), std::nullopt) << wrong;
  }
  EXPECT_EQ(ParseBindAddress(std::string_view("127.0.0.1\0x", 11)), std::nullopt);
}

TEST(ValueTest, Loopback) {
  for (const char* near : {"localhost", "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(IsLoopback(near)) << near;
  }
  for (const char* far :
       {"0.0.0.0", "10.0.0.1", "128.0.0.1", "::", "fe80::1", "::ffff:10.0.0.1", ""}) {
    EXPECT_FALSE(IsLoopback(far)) << far;
  }
}

TEST(ValueTest, EditDistances) {
  EXPECT_EQ(EditDistance("http-port", "http-port"), 0);
  EXPECT_EQ(EditDistance("htp-port", "http-port"), 1);
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
}

TEST(ValueTest, Reals) {
  EXPECT_EQ(ParseReal("0.9"), 0.9);
  EXPECT_EQ(ParseReal("-1e-3"), -1e-3);
  EXPECT_EQ(ParseReal("2"), 2);
  for (const char* wrong : {"", "x", "1x", "+1", "inf", "nan", "1e999", " 1"}) {
    EXPECT_EQ(ParseReal(wrong), std::nullopt) << wrong;
  }
}

}  // namespace
}  // namespace millrace
