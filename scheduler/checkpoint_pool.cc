#include "scheduler/checkpoint_pool.h"

#include <algorithm>
#include <cassert>

namespace millrace {

CheckpointPool::CheckpointPool(int32_t num_places) : places_(num_places) {
  for (CheckpointId id = num_places; id > 0; --id) free_.push_back(id - 1);
}

std::optional<CheckpointId> CheckpointPool::Find(const BlockHash& hash) const {
  const auto it = published_.find(hash);
  return it == published_.end() ? std::nullopt : std::optional(it->second);
}

void CheckpointPool::Hold(CheckpointId id) {
  Place& place = places_[id];
  assert(place.stage == Stage::kPublished);
  place.was_hit = true;
  if (place.holders++ == 0) Unrank(id);
}

void CheckpointPool::Release(CheckpointId id) {
  Place& place = places_[id];
  assert(place.holders > 0);
  if (--place.holders > 0) return;
  if (place.stage == Stage::kPublished) {
    Rank(id);
  } else {
    Free(id);
  }
}

int32_t CheckpointPool::SavedTokens(int32_t position, std::optional<CheckpointId> before) const {
  return position - (before.has_value() ? places_[*before].position : 0);
}

std::optional<CheckpointId> CheckpointPool::Take(int32_t position,
                                                 std::optional<CheckpointId> before) {
  if (free_.empty()) {
    if (ranked_.empty()) return std::nullopt;
    const auto [least, evicted] = *ranked_.begin();
    const int64_t rank = clock_ + SavedTokens(position, before);
    if (rank < least) {
      clock_ = rank;  // as if it had been taken, and were the next to give way
      return std::nullopt;
    }
    clock_ = least;
    ++num_evicted_;
    if (before == evicted) before = places_[evicted].before;
    Unrank(evicted);
    Withdraw(evicted);
    Free(evicted);
  }
  const CheckpointId id = free_.back();
  free_.pop_back();
  Begin(id, position, before);
  return id;
}

bool CheckpointPool::TakeAgain(CheckpointId id, const BlockHash& hash, int32_t position,
                               std::optional<CheckpointId> before) {
  const Place& place = places_[id];
  if (place.stage != Stage::kPublished || place.hash != hash || place.was_hit) return false;
  Unrank(id);
  Withdraw(id);
  Begin(id, position, before);
  return true;
}

void CheckpointPool::Begin(CheckpointId id, int32_t position, std::optional<CheckpointId> before) {
  Place& place = places_[id];
  place = {.stage = Stage::kWritten, .position = position};
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
  Rank(id);
}

void CheckpointPool::Rank(CheckpointId id) {
  Place& place = places_[id];
  place.rank = clock_ + SavedTokens(place.position, place.before);
  ranked_.emplace(place.rank, id);
}

// Those that follow it save more without it.
void CheckpointPool::Withdraw(CheckpointId id) {
  Place& place = places_[id];
  published_.erase(place.hash);
  place.stage = Stage::kWithdrawn;
  if (place.before.has_value()) std::erase(places_[*place.before].after, id);
  const int32_t saved = SavedTokens(place.position, place.before);
  for (const CheckpointId next : place.after) {
    Place& follower = places_[next];
    follower.before = place.before;
    if (place.before.has_value()) places_[*place.before].after.push_back(next);
    if (follower.holders > 0) continue;  // is ranked when it is released
    Unrank(next);
    follower.rank += saved;
    ranked_.emplace(follower.rank, next);
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
