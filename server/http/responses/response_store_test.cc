#include "server/http/responses/response_store.h"

#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

constexpr size_t kMost = ResponseStore::kMaxResponses;
constexpr size_t kMostBytes = ResponseStore::kMaxBytes;

StoredResponse Response(std::string id, std::string owner, size_t bytes = 0,
                        std::vector<Turn> turns = {}) {
  return {.id = std::move(id),
          .owner = std::move(owner),
          .json = std::make_shared<const SharedBody>(std::string(bytes, 'x')),
          .turns = std::move(turns)};
}

Turn TurnOf(size_t bytes) {
  return std::make_shared<const TurnMessages>(
      std::vector<ChatMessage>{{.role = "user", .content = std::string(bytes, 'x')}});
}

bool Has(const ResponseStore& store, std::string_view id, std::string_view owner) {
  return store.Get(id, owner).has_value();
}

TEST(ResponseStoreTest, AnOwnerAloneHasAllAndLosesItsOldest) {
  ResponseStore store;
  for (size_t i = 0; i < kMost + 10; ++i) store.Put(Response(StrCat(i), "o"));
  EXPECT_EQ(store.size(), kMost);
  EXPECT_FALSE(Has(store, "9", "o"));
  EXPECT_TRUE(Has(store, "10", "o"));
  EXPECT_FALSE(Has(store, "10", "other"));
  EXPECT_FALSE(store.Delete("10", "other"));
  store.Put(Response("large", "o", kMostBytes / 2));
  store.Put(Response("larger", "o", kMostBytes / 2));
  EXPECT_FALSE(Has(store, "large", "o"));
  EXPECT_EQ(store.size(), 1u);
  EXPECT_LE(store.bytes(), kMostBytes);
}

TEST(ResponseStoreTest, WhatIsTooLargeDrivesNothingOut) {
  ResponseStore store;
  store.Put(Response("small", "o"));
  store.Put(Response("json", "o", kMostBytes));
  store.Put(Response("turns", "o", 0, {TurnOf(kMostBytes / 2), TurnOf(kMostBytes / 2)}));
  EXPECT_TRUE(Has(store, "small", "o"));
  EXPECT_EQ(store.size(), 1u);
}

TEST(ResponseStoreTest, AnOwnerWithinItsShareLosesNothingToOthers) {
  ResponseStore store;
  for (int i = 0; i < 3; ++i) store.Put(Response(StrCat("a", i), "a", kMostBytes / 8));
  for (int i = 0; i < 20; ++i) store.Put(Response(StrCat("b", i), "b", kMostBytes / 4));
  // Nor does it lose them by count.
  for (size_t i = 0; i < 2 * kMost; ++i) store.Put(Response(StrCat("c", i), "c"));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Has(store, StrCat("a", i), "a")) << i;
  EXPECT_TRUE(Has(store, "b19", "b"));
  EXPECT_TRUE(Has(store, StrCat("c", 2 * kMost - 1), "c"));
  EXPECT_EQ(store.size(), kMost);
  EXPECT_LE(store.bytes(), kMostBytes);
}

TEST(ResponseStoreTest, WhoHoldsAllGivesANewcomerItsShare) {
  ResponseStore store;
  for (int i = 0; i < 8; ++i) store.Put(Response(StrCat("a", i), "a", kMostBytes / 9));
  for (int i = 0; i < 3; ++i) {
    store.Put(Response(StrCat("b", i), "b", kMostBytes / 9));
    EXPECT_TRUE(Has(store, StrCat("b", i), "b"));
  }
  EXPECT_FALSE(Has(store, "a2", "a"));
  EXPECT_TRUE(Has(store, "a3", "a"));
  // An owner beyond its share drives out its own responses alone.
  store.Put(Response("b3", "b", kMostBytes / 3 * 2));
  EXPECT_EQ(store.size(), 5u);
  EXPECT_TRUE(Has(store, "a3", "a"));
  EXPECT_FALSE(Has(store, "b3", "b"));
}

TEST(ResponseStoreTest, TheFirstOfAnIdGives) {
  ResponseStore store;
  store.Put(Response("x", "o", 100, {TurnOf(1000)}));
  const size_t once = store.bytes();
  store.Put(Response("x", "o", 100, {TurnOf(1000)}));
  EXPECT_EQ(store.bytes(), once);
  EXPECT_TRUE(store.Delete("x", "o"));
  EXPECT_FALSE(store.Delete("x", "o"));
  EXPECT_EQ(store.bytes(), 0u);
}

TEST(ResponseStoreTest, TurnsAreKeptAsLongAsAResponseHasThem) {
  ResponseStore store;
  const Turn first = TurnOf(10000);
  const Turn second = TurnOf(10);
  const Turn other = TurnOf(10);
  store.Put(Response("1", "o", 0, {first}));
  store.Put(Response("2", "o", 0, {first, second}));
  const size_t both = store.bytes();
  store.Put(Response("3", "o", 0, {first, other}));
  EXPECT_EQ(store.Get("3", "o")->turns, (std::vector<Turn>{first, other}));
  EXPECT_TRUE(store.Delete("3", "o"));
  EXPECT_EQ(store.bytes(), both);
  EXPECT_TRUE(store.Delete("1", "o"));
  EXPECT_EQ(store.Get("2", "o")->turns, (std::vector<Turn>{first, second}));
  EXPECT_GT(store.bytes(), 10000u);
  // A response that was in the making when the one before it went still has all of its turns.
  EXPECT_TRUE(store.Delete("2", "o"));
  EXPECT_EQ(store.bytes(), 0u);
  store.Put(Response("4", "o", 0, {first, second, other}));
  EXPECT_EQ(store.Get("4", "o")->turns, (std::vector<Turn>{first, second, other}));
}

// With a copy of the conversation in each response this would be 10 GiB.
TEST(ResponseStoreTest, AChainOfTenThousandTakesLinearMemory) {
  constexpr size_t kChain = 10000;
  ResponseStore store;
  StoredResponse next = Response("", "o", 100);
  std::vector<Turn>& turns = next.turns;
  for (size_t i = 0; i < kChain; ++i) {
    if (i > 0 && i % 100 == 0) turns = store.Get(StrCat(i - 1), "o")->turns;
    ASSERT_EQ(turns.size(), i);
    turns.push_back(TurnOf(200));
    next.id = StrCat(i);
    store.Put(next);
  }
  EXPECT_EQ(store.size(), kMost);
  EXPECT_GT(store.bytes(), kChain * 200);
  EXPECT_LT(store.bytes(), kChain * 1500);
  const Turn first = turns.front();
  turns.clear();
  EXPECT_EQ(first.use_count(), 2);
  // Another's long chain does not keep more than its own share.
  store.Put(Response("one", "other", kMostBytes / 3));
  for (size_t i = 0; i < 100; ++i) {
    turns.push_back(TurnOf(kMostBytes / 101));
    store.Put(Response(StrCat("long", i), "o", 0, turns));
  }
  EXPECT_TRUE(Has(store, "one", "other"));
  EXPECT_LE(store.bytes(), kMostBytes);
  for (size_t i = 0; i < 100; ++i) store.Delete(StrCat("long", i), "o");
  EXPECT_TRUE(store.Delete("one", "other"));
}

}  // namespace
}  // namespace millrace
