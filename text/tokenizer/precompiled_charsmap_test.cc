#include "text/tokenizer/precompiled_charsmap.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "text/utf8.h"

namespace millrace {
namespace {

constexpr size_t kMost = 1 << 20;

std::string Words(const std::vector<uint32_t>& words) {
  std::string bytes;
  for (const uint32_t word : words) {
    for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(word >> shift));
  }
  return bytes;
}

// A trie with "a" alone, which becomes `text`: the root's children are at 1 ^ label, a's leaf at 2.
std::string MapOfA(std::string_view text) {
  std::vector<uint32_t> trie(256);
  trie[0] = 1 << 10;
  trie[1 ^ 'a'] = 'a' | 1 << 8 | (3 ^ 'a') << 10;  // 3: from 1 to 2
  trie[2] = 0x80000000;
  std::string bytes = Words({static_cast<uint32_t>(4 * trie.size())}) + Words(trie);
  bytes.append(text).push_back('\0');
  return bytes;
}

TEST(PrecompiledCharsmapTest, Replaces) {
  const auto charsmap = PrecompiledCharsmap::Create(MapOfA("xyz"));
  ASSERT_TRUE(charsmap.ok()) << charsmap.status();
  EXPECT_EQ(charsmap->Apply("banána", kMost), "bxyznánxyz");
  // A grapheme of few bytes goes as a whole, however little of it the map knows.
  EXPECT_EQ(charsmap->Apply("a\u0301b", kMost), "xyzb");
  EXPECT_LE(charsmap->Apply(std::string(1000, 'a'), 10).size(), 13u);
}

TEST(PrecompiledCharsmapTest, RefusesWhatLies) {
  EXPECT_FALSE(PrecompiledCharsmap::Create("").ok());
  EXPECT_FALSE(PrecompiledCharsmap::Create(Words({0, 0})).ok());
  EXPECT_FALSE(PrecompiledCharsmap::Create(Words({8, 0})).ok());
  EXPECT_FALSE(PrecompiledCharsmap::Create(Words({3, 0})).ok());
  EXPECT_FALSE(PrecompiledCharsmap::Create(MapOfA("\xff")).ok());
}

TEST(PrecompiledCharsmapTest, StaysInsideOfAnyTrie) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<uint32_t> trie(1 + random() % 300);
    for (uint32_t& unit : trie) unit = static_cast<uint32_t>(random()) >> random() % 24;
    const std::string bytes = Words({static_cast<uint32_t>(4 * trie.size())}) + Words(trie) + "äb";
    const auto charsmap = PrecompiledCharsmap::Create(bytes);
    ASSERT_TRUE(charsmap.ok());
    std::string text;
    for (int i = 0; i < 100; ++i) AppendCharacter(1 + random() % 0xd7ff, &text);
    EXPECT_EQ(FindInvalidUtf8(charsmap->Apply(text, kMost)), std::string_view::npos);
  }
}

}  // namespace
}  // namespace millrace
