#include "base/sha256.h"

#include <string>

#include "absl/strings/escaping.h"
#include "base/sha1.h"
#include "base/strings.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

template <typename Digest>
std::string Hex(const Digest& digest) {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

// The examples of FIPS 180-4, and the empty message.
TEST(Sha256Test, GivesTheStandardsDigestsOneAfterAnother) {
  Sha256 hash;
  EXPECT_EQ(Hex(hash.Finish()), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(AbslView(AsBytes(Sha256Of("abc"))).substr(0, 4), "\xba\x78\x16\xbf");
  hash.Update("abc");
  EXPECT_EQ(Hex(hash.Finish()), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  hash.Update("abcdbcdecdefdefgefghfghighijhijkijkl");
  hash.Update("jklmklmnlmnomnopnopq");
  EXPECT_EQ(Hex(hash.Finish()), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(Sha1Test, GivesTheStandardsDigestsOneAfterAnother) {
  Sha1 hash;
  EXPECT_EQ(Hex(hash.Finish()), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
  hash.Update("a");
  hash.Update("bc");
  EXPECT_EQ(Hex(hash.Finish()), "a9993e364706816aba3e25717850c26c9cd0d89d");
}

}  // namespace
}  // namespace millrace
