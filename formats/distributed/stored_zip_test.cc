#include "formats/distributed/stored_zip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "formats/distributed/checkpoint_test_util.h"

namespace millrace {
namespace {

using testing::HasSubstr;

std::string Error(const std::string& bytes) {
  const absl::StatusOr<StoredZip> zip = StoredZip::Read(BytesOf(bytes));
  return zip.ok() ? "(no error)" : std::string(zip.status().message());
}

TEST(StoredZipTest, FindsEntriesBelowTheFolder) {
  const std::string bytes = ZipOf({{"archive/data.pkl", "abc"}, {"archive/data/0", "defg"}});
  const absl::StatusOr<StoredZip> zip = StoredZip::Read(BytesOf(bytes));
  ASSERT_TRUE(zip.ok()) << zip.status();
  ASSERT_NE(zip->Find("data/0"), nullptr);
  EXPECT_EQ(zip->Find("data/0")->bytes, BytesOf("defg"));
  EXPECT_EQ(zip->Find("data.pkl")->bytes, BytesOf("abc"));
  EXPECT_EQ(zip->Find("archive/data.pkl"), nullptr);
}

TEST(StoredZipTest, DamagedOnesAreRefused) {
  const std::string good = ZipOf({{"a/b", "content"}});
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_NE(Error(good.substr(0, size)), "(no error)") << size;
  }
  // Each byte changed: read or refused, but never outside.
  for (size_t i = 0; i < good.size(); ++i) {
    for (const char value : {'\0', '\x7f', '\xff'}) {
      std::string bad = good;
      bad[i] = value;
      Error(bad);
    }
  }
}

TEST(StoredZipTest, CompressedEntriesAreRefused) {
  std::string bytes = ZipOf({{"a/b", "content"}});
  bytes[bytes.find("PK\1\2") + 10] = 8;  // deflate
  EXPECT_THAT(Error(bytes), HasSubstr("entry a/b is compressed"));
}

}  // namespace
}  // namespace millrace
