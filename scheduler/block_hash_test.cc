#include "scheduler/block_hash.h"

#include <set>
#include <string_view>
#include <vector>

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

std::string Hex(const BlockHash& hash) {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(hash.data()), hash.size()));
}

// By hashlib: a = sha256(bytes(32) + struct.pack("<2i", 1, 2)), b = sha256(a + struct.pack("<2i",
// 3, 4)).
TEST(BlockHashTest, IsTheDocumentedChain) {
  const BlockHashes hashes = HashPrompt(BlockHash{}, {1, 2, 3, 4, 5}, 2);
  ASSERT_EQ(hashes.blocks.size(), 2u);
  EXPECT_EQ(hashes.root, BlockHash{});
  EXPECT_EQ(Hex(hashes.blocks[0]),
            "e7ca17d6581d126af7e0c8574cdd8987ed93319969b54a5e2a272d585a38f3ea");
  EXPECT_EQ(Hex(hashes.blocks[1]),
            "a9edfe541f21e65d5b60b9415fa27b3f4f5719355cfb89fe6027548c9d21d5dd");
}

TEST(BlockHashTest, DependsOnTheRootAndAllTokensBefore) {
  const BlockHash one = CacheRoot({"one"});
  const BlockHash two = CacheRoot({"two"});
  const BlockHash hashes[] = {
      HashPrompt(one, {1, 2, 3, 4}, 2).blocks[1], HashPrompt(two, {1, 2, 3, 4}, 2).blocks[1],
      HashPrompt(one, {1, 0, 3, 4}, 2).blocks[1], HashPrompt(one, {1, 2, 4, 3}, 2).blocks[1],
      HashPrompt(one, {3, 4}, 2).blocks[0],       HashPrompt(one, {1, 2, 3, 4}, 4).blocks[0]};
  EXPECT_EQ(std::set<BlockHash>(std::begin(hashes), std::end(hashes)).size(), std::size(hashes));
}

TEST(BlockHashTest, TheHasherContinuesAPromptsChain) {
  const BlockHashes hashes = HashPrompt(CacheRoot({"m"}), {1, 2, 3, 4, 5, 6}, 2);
  EXPECT_EQ(BlockHasher().Hash(hashes.blocks[1], {5, 6}), hashes.blocks[2]);
}

TEST(BlockHashTest, HasOnlyFullBlocks) {
  EXPECT_TRUE(HashPrompt(BlockHash{}, {}, 2).blocks.empty());
  EXPECT_TRUE(HashPrompt(BlockHash{}, {1}, 2).blocks.empty());
  EXPECT_EQ(HashPrompt(BlockHash{}, {1, 2}, 2).blocks.size(), 1u);
}

TEST(BlockHashTest, TheRootsPartsDoNotRunIntoEachOther) {
  EXPECT_NE(CacheRoot({"ab", "c"}), CacheRoot({"a", "bc"}));
  EXPECT_NE(CacheRoot({"a", ""}), CacheRoot({"a"}));
  EXPECT_EQ(CacheRoot({"a", "b"}), CacheRoot({"a", "b"}));
}

}  // namespace
}  // namespace millrace
