#include "server/http/response_store.h"

#include <utility>

#include "engine/text_set.h"

namespace millrace {

size_t ResponseStore::Bytes(const StoredResponse& response) {
  return sizeof(response) + response.json.size() + response.owner.size() +
         MessagesBytes(response.conversation);
}

void ResponseStore::Put(StoredResponse response) {
  const size_t bytes = Bytes(response);
  if (bytes > kMaxBytes) return;
  std::lock_guard lock(mutex_);
  if (const auto old = by_id_.find(response.id); old != by_id_.end()) Erase(old->second);
  while (!responses_.empty() &&
         (responses_.size() >= kMaxResponses || bytes_ + bytes > kMaxBytes)) {
    Erase(responses_.begin());
  }
  bytes_ += bytes;
  const std::string id = response.id;
  responses_.push_back(std::move(response));
  by_id_[id] = std::prev(responses_.end());
}

void ResponseStore::Erase(Responses::iterator response) {
  bytes_ -= Bytes(*response);
  by_id_.erase(response->id);
  responses_.erase(response);
}

std::optional<StoredResponse> ResponseStore::Get(std::string_view id,
                                                 std::string_view owner) const {
  std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second->owner != owner) return std::nullopt;
  return *found->second;
}

bool ResponseStore::Delete(std::string_view id, std::string_view owner) {
  std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second->owner != owner) return false;
  Erase(found->second);
  return true;
}

size_t ResponseStore::size() const {
  std::lock_guard lock(mutex_);
  return responses_.size();
}

}  // namespace millrace
