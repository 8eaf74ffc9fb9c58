#include "scheduler/checkpoint_pool.h"

#include <algorithm>
#include <cassert>

namespace millrace {
namespace {

constexpr int64_t kMostFates = 256;  // older ones count less
constexpr int64_t kLeastShare = 16;  // a sixteenth: what was of no use is tried again

}  // namespace

CheckpointPool::CheckpointPool(int32_t num_places) : places_(num_places) {
  for (CheckpointId id = num_places; id > 0; --id) free_.push_back(id - 1);
}

std::optional<CheckpointId> CheckpointPool::Find(const BlockHash& hash) const {
  const auto it = published_.find(hash);
  return it == published_.end() ? std::nullopt : std::optional(it->second);
}

void CheckpointPool::Hold(CheckpointId id, bool tells_use) {
  Place& place = places_[id];
  assert(place.stage == Stage::kPublished);
  place.was_hit = true;
  if (tells_use) {
    CountFate(place.kind, place.hits, /*hit=*/true);
    place.hits = std::min(place.hits + 1, kMostHits);
    if (place.before.has_value()) LeaveBehind(*place.before);
    // From a prompt's end: its answer did not come back as it was.
    if (place.kind == CheckpointKind::kPromptEnd) {
      for (const CheckpointId next : place.after) {
        if (places_[next].kind == CheckpointKind::kAnswer) LeaveBehind(next);
      }
    }
  }
  if (place.holders++ == 0) Unrank(id);
}

void CheckpointPool::Release(CheckpointId id) {
  Place& place = places_[id];
  assert(place.holders > 0);
  if (--place.holders > 0) return;
  if (place.stage == Stage::kPublished) {
    Rank(id, clock_);
  } else {
    Free(id);
  }
}

bool CheckpointPool::CountMissed(const BlockHash& hash) {
  const auto it = gone_.find(hash);
  if (it == gone_.end()) return false;
  CountFate(it->second.kind, it->second.hits, /*hit=*/true);
  gone_.erase(it);
  return true;
}

void CheckpointPool::LeaveBehind(CheckpointId id) {
  Place& place = places_[id];
  if (place.hits > 0) return;
  CountFate(place.kind, place.hits, /*hit=*/false);
  place.hits = 1;
  if (place.holders > 0) return;
  Unrank(id);
  Rank(id, place.ranked_at);
}

void CheckpointPool::Remember(const Place& place) {
  if (gone_order_.size() == places_.size()) {
    const auto [hash, serial] = gone_order_.front();
    gone_order_.pop_front();
    const auto it = gone_.find(hash);
    if (it != gone_.end() && it->second.serial == serial) {  // and did not give way once more
      CountFate(it->second.kind, it->second.hits, /*hit=*/false);
      gone_.erase(it);
    }
  }
  gone_.insert_or_assign(place.hash, Gone{place.kind, place.hits, num_evicted_});
  gone_order_.emplace_back(place.hash, num_evicted_);
}

void CheckpointPool::CountFate(CheckpointKind kind, int hits, bool hit) {
  Fates& fates = FatesOf(kind, hits);
  if (fates.all == kMostFates) {
    fates.all /= 2;
    fates.hit /= 2;
  }
  ++fates.all;
  fates.hit += hit ? 1 : 0;
}

int64_t CheckpointPool::Worth(const Place& place) {
  const int32_t begin = place.before.has_value() ? places_[*place.before].position : 0;
  const Fates& fates = FatesOf(place.kind, place.hits);
  return (place.position - begin) * std::max(fates.hit, fates.all / kLeastShare) / fates.all;
}

std::optional<CheckpointId> CheckpointPool::Take(CheckpointKind kind, int32_t position,
                                                 std::optional<CheckpointId> before) {
  if (free_.empty()) {
    if (ranked_.empty()) return std::nullopt;
    const auto [least, evicted] = *ranked_.begin();
    const int64_t rank = clock_ + Worth({.kind = kind, .position = position, .before = before});
    if (rank < least) {
      clock_ = rank;  // as if it had been taken, and were the next to give way
      return std::nullopt;
    }
    clock_ = least;
    ++num_evicted_;
    Remember(places_[evicted]);
    if (before == evicted) before = places_[evicted].before;
    Unrank(evicted);
    Withdraw(evicted);
    Free(evicted);
  }
  const CheckpointId id = free_.back();
  free_.pop_back();
  Begin(id, kind, position, before);
  return id;
}

bool CheckpointPool::TakeAgain(CheckpointId id, const BlockHash& hash, int32_t position,
                               std::optional<CheckpointId> before) {
  const Place& place = places_[id];
  if (place.stage != Stage::kPublished || place.hash != hash || place.was_hit) return false;
  Unrank(id);
  Withdraw(id);
  Begin(id, place.kind, position, before);
  return true;
}

void CheckpointPool::Begin(CheckpointId id, CheckpointKind kind, int32_t position,
                           std::optional<CheckpointId> before) {
  Place& place = places_[id];
  place = {.stage = Stage::kWritten, .kind = kind, .position = position};
  if (before.has_value()) place.before_hash = places_[*before].hash;
  written_.push_back(id);
}

void CheckpointPool::Name(CheckpointId id, const BlockHash& hash) {
  assert(places_[id].stage == Stage::kWritten);
  places_[id].hash = hash;
  places_[id].named = true;
}

void CheckpointPool::Finish(CheckpointId id, bool ok) {
  Place& place = places_[id];
  assert(place.stage == Stage::kWritten);
  std::erase(written_, id);
  if (!ok || !place.named || !published_.try_emplace(place.hash, id).second) return Free(id);
  place.stage = Stage::kPublished;
  // The one before it may have given way since.
  if (place.before_hash.has_value()) place.before = Find(*place.before_hash);
  if (place.before.has_value()) places_[*place.before].after.push_back(id);
  Rank(id, clock_);
}

void CheckpointPool::Rank(CheckpointId id, int64_t at) {
  Place& place = places_[id];
  place.ranked_at = at;
  place.rank = std::max(clock_, at + Worth(place));
  ranked_.emplace(place.rank, id);
}

// Those that follow it save more without it.
void CheckpointPool::Withdraw(CheckpointId id) {
  Place& place = places_[id];
  published_.erase(place.hash);
  place.stage = Stage::kWithdrawn;
  if (place.before.has_value()) std::erase(places_[*place.before].after, id);
  for (const CheckpointId next : place.after) {
    Place& follower = places_[next];
    follower.before = place.before;
    if (place.before.has_value()) places_[*place.before].after.push_back(next);
    if (follower.holders > 0) continue;  // is ranked when it is released
    Unrank(next);
    Rank(next, follower.ranked_at);
  }
  place.after.clear();
}

void CheckpointPool::Free(CheckpointId id) {
  places_[id] = {};
  free_.push_back(id);
}

void CheckpointPool::Unpublish(const BlockHash& hash) {
  if (const std::optional<CheckpointId> id = Find(hash)) {
    if (places_[*id].holders == 0) Unrank(*id);
    Withdraw(*id);
    if (places_[*id].holders == 0) Free(*id);
  }
  for (const CheckpointId id : written_) {
    if (places_[id].named && places_[id].hash == hash) places_[id].named = false;
  }
}

}  // namespace millrace
