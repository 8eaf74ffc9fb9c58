// Listeners that follow a pool by messages alone: all of them, some of them, or from late on.
#include "server/kv_events/kv_event_log.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "formats/json/json.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

constexpr int32_t kBlockSize = 2;

StateLayout TwoGroups() {
  return {.block_size = kBlockSize, .groups = {PagedState{.window = 4}, PagedState{}}};
}

// A pool whose blocks come and go at random, along chains.
class RandomPool {
 public:
  RandomPool(uint64_t seed, size_t most) : random_(seed), most_(most) {}

  int Below(size_t n) { return static_cast<int>(random_() % n); }

  std::vector<BlockEvent> Change() {
    std::vector<BlockEvent> events;
    for (int i = 1 + Below(6); i > 0; --i) {
      const bool is_full = blocks_.size() == most_;
      events.push_back(is_full || (!blocks_.empty() && Below(100) < 45) ? Remove() : Store());
    }
    return events;
  }

  // Group and short hash of each block.
  std::set<std::pair<int, uint64_t>> View() const {
    std::set<std::pair<int, uint64_t>> view;
    for (const auto& [key, block] : blocks_) view.insert({key.first, ShortHash(key.second)});
    return view;
  }

 private:
  BlockEvent Remove() {
    const auto it = std::next(blocks_.begin(), Below(blocks_.size()));
    BlockEvent removed = {.group = it->first.first, .hash = it->first.second};
    gone_.push_back(std::move(it->second));
    blocks_.erase(it);
    return removed;
  }

  // A block that was there before comes again at times, with the same content.
  BlockEvent Store() {
    if (Below(3) == 0 && !gone_.empty()) {
      std::swap(gone_[Below(gone_.size())], gone_.back());
      BlockEvent again = std::move(gone_.back());
      gone_.pop_back();
      if (blocks_.try_emplace({again.group, again.hash}, again).second) return again;
    }
    BlockEvent block = {.group = Below(2), .stored = true};
    if (Below(3) > 0 && !blocks_.empty()) {
      const BlockEvent& parent = std::next(blocks_.begin(), Below(blocks_.size()))->second;
      block.group = parent.group;
      block.parent = parent.hash;
      block.place = parent.place + 1;
    }
    block.tokens = {++token_, Below(100)};
    block.hash = hasher_.Hash(block.parent, block.tokens);
    blocks_.emplace(BlockKey(block.group, block.hash), block);
    return block;
  }

  std::mt19937_64 random_;
  const size_t most_;
  BlockHasher hasher_;
  Token token_ = 0;
  std::map<BlockKey, BlockEvent> blocks_;
  std::vector<BlockEvent> gone_;
};

// Knows what messages say. Of each block the events take turns.
class Listener {
 public:
  void Apply(const KvEventMessage& message) {
    const Json batch = Json::from_msgpack(*message.payload);
    for (const Json& event : batch.at(1)) {
      if (event.at("type") == "AllBlocksCleared") {
        view_.clear();
        continue;
      }
      const int group = event.at("group_idx");
      const bool stored = event.at("type") == "BlockStored";
      for (const Json& hash : event.at("block_hashes")) {
        const bool is_new = view_.insert({group, hash.get<uint64_t>()}).second;
        EXPECT_EQ(is_new, stored);
        if (!stored) view_.erase({group, hash.get<uint64_t>()});
      }
    }
  }

  // Takes a message of the stream. After a gap it asks for what is missing, and where that is no
  // longer kept, for a snapshot.
  void Hear(const KvEventMessage& message, const KvEventLog& log) {
    if (message.sequence < next_) return;
    if (message.sequence > next_) return Recover(log);
    Apply(message);
    next_ = message.sequence + 1;
  }

  void Recover(const KvEventLog& log) {
    const std::vector<KvEventMessage> replayed = log.Replay(next_);
    uint64_t expected = next_;
    for (const KvEventMessage& message : replayed) {
      if (message.sequence != expected++) return TakeSnapshot(log);
    }
    if (expected != log.next_sequence()) return TakeSnapshot(log);
    for (const KvEventMessage& message : replayed) Apply(message);
    next_ = expected;
    replays_ += replayed.empty() ? 0 : 1;
  }

  void TakeSnapshot(const KvEventLog& log) {
    for (const KvEventMessage& message : log.Snapshot(0)) {
      Apply(message);
      next_ = message.sequence;
    }
    ++snapshots_;
  }

  const std::set<std::pair<int, uint64_t>>& view() const { return view_; }
  int replays() const { return replays_; }
  int snapshots() const { return snapshots_; }

 private:
  std::set<std::pair<int, uint64_t>> view_;
  uint64_t next_ = KvEventLog::kFirstSequence;
  int replays_ = 0, snapshots_ = 0;
};

TEST(KvEventLogTest, EveryListenerEndsUpWithThePool) {
  for (const size_t buffer_steps : {size_t{0}, size_t{4}, size_t{1000}}) {
    RandomPool pool(/*seed=*/buffer_steps, /*most=*/50);
    KvEventQueue queue(/*capacity=*/3);
    KvEventLog log(TwoGroups(), buffer_steps);
    Listener faithful, lossy;
    // It applies all that it hears, and knows nothing of numbers, replay and snapshots.
    Listener simple;
    std::optional<Listener> late;
    const KvEventMessage first = log.Begin(0);
    faithful.Hear(first, log);
    simple.Apply(first);
    for (int i = 0; i < 1000; ++i) {
      queue.Push(pool.Change(), /*time=*/i);
      if (pool.Below(4) > 0) continue;  // the publisher's thread lags
      for (KvEventBatch& batch : queue.TakeAll()) {
        const std::vector<KvEventMessage> messages = log.Append(std::move(batch));
        ASSERT_EQ(messages.size(), 1u);
        const KvEventMessage& message = messages[0];
        simple.Apply(message);
        faithful.Hear(message, log);
        if (pool.Below(5) > 1) lossy.Hear(message, log);
        if (late.has_value()) late->Hear(message, log);
      }
      ASSERT_EQ(simple.view(), pool.View());
      ASSERT_EQ(faithful.view(), pool.View());
      if (pool.Below(20) == 0) {
        late.emplace();
        late->TakeSnapshot(log);
      }
      if (late.has_value()) {
        ASSERT_EQ(late->view(), pool.View());
      }
      if (pool.Below(10) == 0) {
        lossy.Recover(log);  // it lost the last message, perhaps, of which no later one tells
        ASSERT_EQ(lossy.view(), pool.View());
      }
      ASSERT_FALSE(testing::Test::HasFailure());
    }
    EXPECT_GT(queue.num_merged(), 50);
    EXPECT_EQ(faithful.replays() + faithful.snapshots(), 0);  // a merge leaves no gap
    EXPECT_EQ(lossy.snapshots() > 0, buffer_steps < 1000);
    EXPECT_EQ(lossy.replays() > 10, buffer_steps > 0);
  }
}

TEST(KvEventLogTest, ASnapshotNamesParentsFirst) {
  RandomPool pool(/*seed=*/7, /*most=*/1500);
  KvEventLog log(TwoGroups(), 0);
  log.Begin(0);
  for (int i = 1; i < 9000; ++i) log.Append({0, pool.Change()});
  const std::vector<KvEventMessage> messages = log.Snapshot(0);
  EXPECT_GT(messages.size(), 1u);
  const auto all = pool.View();
  std::set<std::pair<int, uint64_t>> named;
  for (const KvEventMessage& message : messages) {
    EXPECT_EQ(message.sequence, 9000u);
    const Json batch = Json::from_msgpack(*message.payload);
    for (const Json& event : batch.at(1)) {
      if (event.at("type") == "AllBlocksCleared") continue;
      const int group = event.at("group_idx");
      if (!event.at("parent_block_hash").is_null()) {
        const std::pair parent = {group, event.at("parent_block_hash").get<uint64_t>()};
        EXPECT_EQ(named.contains(parent), all.contains(parent));
      }
      EXPECT_EQ(event.at("token_ids").size(), kBlockSize * event.at("block_hashes").size());
      for (const Json& hash : event.at("block_hashes")) named.insert({group, hash.get<uint64_t>()});
    }
  }
  EXPECT_EQ(named, all);
}

TEST(KvEventLogTest, ABigBatchBecomesMessagesThatFollowOneAnother) {
  KvEventLog log(TwoGroups(), /*buffer_steps=*/10);
  log.Begin(0);
  KvEventBatch batch;
  BlockHasher hasher;
  for (Token i = 0; i < 2500; ++i) {
    batch.events.push_back(
        {.group = 1, .stored = true, .hash = hasher.Hash({}, {i, 0}), .tokens = {i, 0}});
  }
  const std::vector<KvEventMessage> messages = log.Append(std::move(batch));
  ASSERT_EQ(messages.size(), 3u);
  Listener listener;
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(messages[i].sequence, i + 1);
    EXPECT_EQ(Json::from_msgpack(*messages[i].payload).at(1).size(), i < 2 ? 1024u : 452u);
    listener.Apply(messages[i]);
  }
  EXPECT_EQ(listener.view().size(), 2500u);
  EXPECT_EQ(log.next_sequence(), 4u);
  EXPECT_EQ(log.Replay(1).size(), 3u);
}

TEST(KvEventLogTest, WhatIsKeptIsBounded) {
  KvEventLog log(TwoGroups(), /*buffer_steps=*/2);
  log.Begin(0);
  for (int i = 1; i <= 5; ++i) log.Append({0, {}});
  const auto sequences = [](const std::vector<KvEventMessage>& messages) {
    std::vector<uint64_t> numbers;
    for (const KvEventMessage& message : messages) numbers.push_back(message.sequence);
    return numbers;
  };
  EXPECT_EQ(sequences(log.Replay(0)), (std::vector<uint64_t>{4, 5}));
  EXPECT_EQ(sequences(log.Replay(5)), (std::vector<uint64_t>{5}));
  EXPECT_EQ(sequences(log.Replay(6)), std::vector<uint64_t>{});
}

TEST(KvEventQueueTest, AFullQueueMergesTheOldest) {
  KvEventQueue queue(/*capacity=*/2);
  const auto event = [](uint8_t hash, bool stored, int32_t place = 0) {
    BlockEvent made{.stored = stored, .place = place};
    made.hash.back() = hash;
    return made;
  };
  queue.Push({event(1, true), event(2, true, 1)}, 0.1);
  queue.Push({event(1, false), event(3, false)}, 0.2);
  queue.Push({event(1, true)}, 0.3);
  queue.Push({event(4, true)}, 0.4);
  queue.Push({event(5, true)}, 0.5);
  EXPECT_EQ(queue.num_merged(), 2);
  const std::vector<KvEventBatch> batches = queue.TakeAll();
  ASSERT_EQ(batches.size(), 3u);
  EXPECT_EQ(batches[0].time, 0.3);
  // 1 came, went and came: it stands before 2, whose parent it may be.
  std::vector<std::pair<int, bool>> merged;
  for (const BlockEvent& each : batches[0].events)
    merged.emplace_back(each.hash.back(), each.stored);
  EXPECT_EQ(merged, (std::vector<std::pair<int, bool>>{{3, false}, {1, true}, {2, true}}));
  EXPECT_EQ(batches[1].time, 0.4);
  EXPECT_EQ(batches[2].time, 0.5);
  EXPECT_TRUE(queue.TakeAll().empty());
}

}  // namespace
}  // namespace millrace
