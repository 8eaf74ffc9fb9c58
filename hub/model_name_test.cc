#include "hub/model_name.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace millrace {
namespace {

using Names = std::vector<std::string>;

TEST(ModelNameTest, ReadsTheHubsNames) {
  const auto plain = ParseHubModelName("HuggingFaceTB/SmolLM2-135M_x.y");
  ASSERT_TRUE(plain.has_value());
  EXPECT_EQ(plain->repository, "HuggingFaceTB/SmolLM2-135M_x.y");
  EXPECT_EQ(plain->file, "");
  const auto file = ParseHubModelName("a/b:sub/c.gguf");
  ASSERT_TRUE(file.has_value());
  EXPECT_EQ(file->repository, "a/b");
  EXPECT_EQ(file->file, "sub/c.gguf");
}

TEST(ModelNameTest, PathsAreNone) {
  for (const char* text : {"",         "a",      "/a/b",     "./b",    "../b",   "a/",      "/b",
                           "a/b/c",    "a/b.",   "-a/b",     "a/b--c", "a/b..c", "a b/c",   "a/b:",
                           "a/b:../c", "a/b:/c", "a/b:c//d", "a\n/b",  "~/b",    "models/ä"}) {
    EXPECT_FALSE(ParseHubModelName(text).has_value()) << text;
  }
  EXPECT_FALSE(ParseHubModelName(std::string(60, 'a') + "/" + std::string(60, 'b')).has_value());
}

TEST(ModelNameTest, HostileNamesOfFilesAreRefused) {
  for (const std::string& name : Names{"a", "a/b.c", "über.txt", "a..b", "..."}) {
    EXPECT_TRUE(IsSafeFileName(name)) << name;
  }
  for (const std::string& name :
       Names{std::string(), std::string(".."), std::string("../x"), std::string("/x"),
             std::string("a/../b"), std::string("a/./b"), std::string("a//b"), std::string("a/"),
             std::string("a\\b"), std::string("a\nb"), std::string("a\0b", 3),
             std::string(256, 'a')}) {
    EXPECT_FALSE(IsSafeFileName(name)) << name;
  }
}

TEST(ModelNameTest, RevisionsAndEtagsBecomePathsToo) {
  for (const char* revision : {"main", "refs/pr/1", "v1.0", "feature/x"}) {
    EXPECT_TRUE(IsSafeRevision(revision)) << revision;
  }
  for (const char* revision : {"", "../main", "/main", "-x", "a b", "a:b", "a/"}) {
    EXPECT_FALSE(IsSafeRevision(revision)) << revision;
  }
  EXPECT_TRUE(IsCommit("0123456789abcdef0123456789abcdef01234567"));
  EXPECT_FALSE(IsCommit("0123456789ABCDEF0123456789abcdef01234567"));
  EXPECT_FALSE(IsCommit("0123"));
  EXPECT_TRUE(IsSafeEtag("abc-1_2"));
  EXPECT_FALSE(IsSafeEtag(""));
  EXPECT_FALSE(IsSafeEtag("a/b"));
  EXPECT_FALSE(IsSafeEtag(".."));
}

TEST(ModelNameTest, EncodesForUrls) {
  EXPECT_EQ(PercentEncoded("refs/pr 1", false), "refs%2Fpr%201");
  EXPECT_EQ(PercentEncoded("a/ü?#", true), "a/%C3%BC%3F%23");
}

}  // namespace
}  // namespace millrace
