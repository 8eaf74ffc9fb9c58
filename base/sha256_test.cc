#include "base/sha256.h"

#include <string>

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

std::string Hex(const Sha256Digest& digest) {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

// FIPS 180-4's own examples, and the hash of nothing.
TEST(Sha256Test, GivesTheStandardsDigestsOneAfterAnother) {
  Sha256 hash;
  EXPECT_EQ(Hex(hash.Finish()), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  hash.Update("abc");
  EXPECT_EQ(Hex(hash.Finish()), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  hash.Update("abcdbcdecdefdefgefghfghighijhijkijkl");
  hash.Update("jklmklmnlmnomnopnopq");
  EXPECT_EQ(Hex(hash.Finish()), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

}  // namespace
}  // namespace millrace
