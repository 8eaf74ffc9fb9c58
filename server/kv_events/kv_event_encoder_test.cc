#include "server/kv_events/kv_event_encoder.h"

#include <string>
#include <vector>

#include "formats/json/json.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

BlockHash HashOf(uint8_t last) {
  BlockHash hash{};
  hash.back() = last;
  return hash;
}

BlockEvent Stored(int group, uint8_t hash, uint8_t parent, int32_t place, std::string salt = "") {
  return {.group = group,
          .stored = true,
          .hash = HashOf(hash),
          .place = place,
          .parent = HashOf(parent),
          .tokens = {hash, 300},
          .salt = std::move(salt)};
}

BlockEvent Removed(int group, uint8_t hash) { return {.group = group, .hash = HashOf(hash)}; }

class KvEventEncoderTest : public testing::Test {
 protected:
  std::string Encode(const std::vector<BlockEvent>& events, bool cleared = false) {
    std::vector<const BlockEvent*> sorted;
    for (const BlockEvent& event : events) sorted.push_back(&event);
    encoder_.SortByGroup(sorted);
    return encoder_.Encode(sorted, 1.5, cleared);
  }
  OrderedJson Decode(const std::vector<BlockEvent>& events, bool cleared = false) {
    return OrderedJson::from_msgpack(Encode(events, cleared));
  }

  const KvEventEncoder encoder_{
      StateLayout{.block_size = 2, .groups = {PagedState{.window = 9}, PagedState{}}}};
};

TEST_F(KvEventEncoderTest, ABlockIsKnownByTheLastBytesOfItsHash) {
  BlockHash hash{};
  for (size_t i = 0; i < hash.size(); ++i) hash[i] = static_cast<uint8_t>(i);
  EXPECT_EQ(ShortHash(hash), 0x18191a1b1c1d1e1fu);
}

TEST_F(KvEventEncoderTest, ABatchIsMessagePackAsItsSpecificationHasIt) {
  const std::string bytes = Encode({Removed(1, 200)}, /*cleared=*/true);
  const std::string expected = "\x93\xca\x3f\xc0" + std::string("\0\0", 2) +  // [1.5,
                               "\x92\x81\xa4type\xb0"
                               "AllBlocksCleared"  // [{"type": "AllBlocksCleared"},
                               "\x84\xa4type\xac"
                               "BlockRemoved\xac"
                               "block_hashes\x91\xcc\xc8\xa6"
                               "medium\xa3GPU\xa9"
                               "group_idx\x01" +
                               std::string("\0", 1);  // ...], 0]
  EXPECT_EQ(bytes, expected);
}

TEST_F(KvEventEncoderTest, BlocksOfAChainBecomeOneEvent) {
  EXPECT_EQ(Decode({Stored(1, 1, 9, 0), Stored(1, 2, 1, 1), Stored(1, 3, 1, 1)}),
            OrderedJson::parse(R"([1.5, [
      {"type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": null,
       "token_ids": [1, 300, 2, 300], "block_size": 2, "lora_id": null, "medium": "GPU",
       "lora_name": null, "group_idx": 1, "kv_cache_spec_kind": "full_attention"},
      {"type": "BlockStored", "block_hashes": [3], "parent_block_hash": 1, "token_ids": [3, 300],
       "block_size": 2, "lora_id": null, "medium": "GPU", "lora_name": null, "group_idx": 1,
       "kv_cache_spec_kind": "full_attention"}], 0])"));
}

TEST_F(KvEventEncoderTest, ASaltStandsWithTheFirstBlock) {
  const OrderedJson batch =
      Decode({Stored(1, 1, 9, 0, "salt"), Stored(1, 2, 1, 1), Stored(1, 4, 3, 1)});
  EXPECT_EQ(batch[1][0]["extra_keys"], OrderedJson::parse(R"([["salt"], null])"));
  EXPECT_FALSE(batch[1][1].contains("extra_keys"));
}

TEST_F(KvEventEncoderTest, GroupsWithAWindowComeLast) {
  const OrderedJson batch = Decode({Stored(0, 1, 9, 0), Stored(1, 1, 9, 0), Removed(0, 5),
                                    Removed(1, 6), Removed(1, 7), Stored(0, 2, 1, 1)});
  std::vector<std::string> order;
  for (const OrderedJson& event : batch[1]) {
    order.push_back(event["type"].get<std::string>() + event["group_idx"].dump() +
                    event["block_hashes"].dump());
  }
  EXPECT_EQ(order,
            (std::vector<std::string>{"BlockStored1[1]", "BlockRemoved1[6,7]", "BlockStored0[1]",
                                      "BlockRemoved0[5]", "BlockStored0[2]"}));
  EXPECT_EQ(batch[1][2]["kv_cache_spec_kind"], "sliding_window");
  EXPECT_EQ(batch[1][2]["kv_cache_spec_sliding_window"], 9);
}

}  // namespace
}  // namespace millrace
