#include "base/address_range.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

bool Contains(std::string_view range, std::string_view address) {
  return ParseAddressRange(range)->Contains(ParseAddressRange(address)->first);
}

TEST(AddressRangeTest, Contains) {
  EXPECT_TRUE(Contains("10.0.0.0/8", "10.255.0.1"));
  EXPECT_FALSE(Contains("10.0.0.0/8", "11.0.0.1"));
  EXPECT_TRUE(Contains("10.1.2.128/25", "10.1.2.200"));
  EXPECT_FALSE(Contains("10.1.2.128/25", "10.1.2.127"));
  EXPECT_TRUE(Contains("127.0.0.1", "127.0.0.1"));
  EXPECT_FALSE(Contains("127.0.0.1", "127.0.0.2"));
  EXPECT_TRUE(Contains("127.0.0.1", "::ffff:127.0.0.1"));
  EXPECT_TRUE(Contains("fd00::/8", "fdab::1"));
  EXPECT_FALSE(Contains("fd00::/8", "fe00::1"));
  EXPECT_TRUE(Contains("0.0.0.0/0", "1.2.3.4"));
  EXPECT_FALSE(Contains("0.0.0.0/0", "::1"));
  EXPECT_TRUE(Contains("::/0", "1.2.3.4"));
}

TEST(AddressRangeTest, RefusesWhatIsNone) {
  for (const std::string_view text :
       {"", "10.0.0", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.1/8", "fd00::1/8",
        "::/129", "localhost", "10.0.0.0/8/8", "10.0.0.0/8 ", "*"}) {
    EXPECT_FALSE(ParseAddressRange(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace millrace
