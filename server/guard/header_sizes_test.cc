#include "server/guard/header_sizes.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace millrace {
namespace {

std::vector<uint8_t> Hex(std::string_view text) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoi(std::string(text.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

constexpr uint64_t kMost = 1 << 20;

// RFC 7541, C.3: requests without Huffman codes.
TEST(HeaderSizesTest, FollowsTheExamplesOfTheRfc) {
  HeaderSizes sizes;
  const uint64_t method_scheme_path = 7 + 3 + 32 + 7 + 4 + 32 + 5 + 1 + 32;
  EXPECT_EQ(sizes.Add(Hex("828684410f7777772e6578616d706c652e636f6d"), kMost),
            method_scheme_path + 10 + 15 + 32);
  EXPECT_EQ(sizes.table_bytes(), 57u);
  EXPECT_EQ(sizes.Add(Hex("828684be58086e6f2d6361636865"), kMost),
            method_scheme_path + 57 + 13 + 8 + 32);
  EXPECT_EQ(sizes.table_bytes(), 110u);
  EXPECT_TRUE(sizes.Add(Hex("828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565"), kMost));
  EXPECT_EQ(sizes.table_bytes(), 164u);
}

// C.6: responses with Huffman codes and a table of 256 bytes, which evicts.
TEST(HeaderSizesTest, FollowsHuffmanCodesAndEvictions) {
  HeaderSizes sizes;
  ASSERT_EQ(sizes.Add(Hex("3fe101"), kMost), 0u);  // the table's size becomes 256
  ASSERT_TRUE(
      sizes.Add(Hex("488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e9"
                    "19d29ad171863c78f0b97c8e9ae82ae43d3"),
                kMost));
  EXPECT_EQ(sizes.table_bytes(), 222u);
  ASSERT_TRUE(sizes.Add(Hex("4883640effc1c0bf"), kMost));
  EXPECT_EQ(sizes.table_bytes(), 222u);
  ASSERT_TRUE(
      sizes.Add(Hex("88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e782"
                    "1dd7f2e6c7b335dfdfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5"
                    "b1063d5007"),
                kMost));
  EXPECT_EQ(sizes.table_bytes(), 215u);
}

TEST(HeaderSizesTest, HuffmanCodes) {
  EXPECT_EQ(HuffmanLength(Hex("f1e3c2e5f23a6ba0ab90f4ff")), 15u);  // www.example.com
  EXPECT_EQ(HuffmanLength(Hex("a8eb10649cbf")), 8u);               // no-cache
  EXPECT_EQ(HuffmanLength({}), 0u);
  EXPECT_EQ(HuffmanLength(Hex("ff")), std::nullopt);        // padding of a whole byte
  EXPECT_EQ(HuffmanLength(Hex("00")), std::nullopt);        // padding that is not ones
  EXPECT_EQ(HuffmanLength(Hex("fffffffc")), std::nullopt);  // the end of string itself
}

TEST(HeaderSizesTest, RefusesWhatNoDecoderTakes) {
  for (const char* block : {"80",            // index 0
                            "be",            // an entry that is not there
                            "ffffffffff7f",  // an index beyond 32 bits
                            "40",            // a name that does not come
                            "400161",        // a value that does not come
                            "40057878",      // a string longer than the block
                            "3fe21f",        // a table larger than announced
                            "8220",          // a table size after a field
                            "0f"}) {
    HeaderSizes sizes;
    EXPECT_EQ(sizes.Add(Hex(block), kMost), std::nullopt) << block;
  }
}

TEST(HeaderSizesTest, StopsAtTheLimit) {
  HeaderSizes sizes;
  std::vector<uint8_t> block = Hex("400161");
  block.insert(block.end(), {0x7f, 0x81, 0x1e});  // 127 + 1 + 30 * 128 = 3968 bytes
  block.insert(block.end(), 3968, 'y');
  block.insert(block.end(), 10'000, 0xbe);
  const auto size = sizes.Add(block, 64 << 10);
  ASSERT_TRUE(size.has_value());
  EXPECT_GT(*size, uint64_t{64} << 10);
  EXPECT_LT(*size, uint64_t{70} << 10);
}

TEST(HeaderSizesTest, SurvivesRandomBlocks) {
  std::mt19937 random(7);
  for (int round = 0; round < 20'000; ++round) {
    HeaderSizes sizes;
    for (int blocks = 0; blocks < 4; ++blocks) {
      std::vector<uint8_t> block(random() % 64);
      for (uint8_t& byte : block) byte = static_cast<uint8_t>(random());
      if (!sizes.Add(block, 1 << 16)) break;
      EXPECT_LE(sizes.table_bytes(), 4096u);
    }
  }
}

}  // namespace
}  // namespace millrace
