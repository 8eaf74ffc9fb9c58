#include "server/http/responses/response_store.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/text_set.h"

namespace millrace {
namespace {

// A response or a turn takes this much beside its texts: pointers, nodes of maps, the allocator's
// headers.
constexpr size_t kOverheadBytes = 512;

}  // namespace

TurnMessages::TurnMessages(std::vector<ChatMessage> of)
    : messages(std::move(of)), bytes(kOverheadBytes + MessagesBytes(messages)) {}

// Returns the node of the last turn. Those from the end on that are new are added.
ResponseStore::Node* ResponseStore::KeepTurns(const std::vector<Turn>& turns, Owner& owner) {
  Node* last = nullptr;
  Node* after = nullptr;
  for (auto turn = turns.rbegin(); turn != turns.rend(); ++turn) {
    std::unique_ptr<Node>& node = nodes_[turn->get()];
    const bool is_new = node == nullptr;
    if (is_new) {
      node = std::make_unique<Node>(Node{.turn = *turn});
      owner.bytes += (*turn)->bytes;
      bytes_ += (*turn)->bytes;
    }
    ++node->users;
    if (after != nullptr) after->before = node.get();
    if (last == nullptr) last = node.get();
    if (!is_new) break;
    after = node.get();
  }
  return last;
}

// Counts one user of a turn out, and lets go of the turns that have none any more.
void ResponseStore::LetGo(Node* last, Owner& owner) {
  while (last != nullptr && --last->users == 0) {
    Node* const before = last->before;
    owner.bytes -= last->turn->bytes;
    bytes_ -= last->turn->bytes;
    nodes_.erase(last->turn.get());
    last = before;
  }
}

ResponseStore::Owner& ResponseStore::OwnerOf(const std::string& name) {
  Owner& owner = owners_[name];
  if (owner.name.empty()) owner.name = name;
  return owner;
}

void ResponseStore::Erase(Place response) {
  Owner& owner = *response->owner;
  owner.bytes -= response->bytes;
  bytes_ -= response->bytes;
  LetGo(response->last, owner);
  by_id_.erase(response->id);
  owner.responses.erase(response);
  if (owner.responses.empty()) owners_.erase(owners_.find(owner.name));
}

// Takes the first by name of owners that hold equally much.
void ResponseStore::EraseOldestOfMost(bool by_bytes) {
  const auto held = [by_bytes](const auto& entry) {
    return by_bytes ? entry.second.bytes : entry.second.responses.size();
  };
  const auto most =
      std::max_element(owners_.begin(), owners_.end(),
                       [&](const auto& a, const auto& b) { return held(a) < held(b); });
  Erase(most->second.responses.begin());
}

void ResponseStore::Put(const StoredResponse& response) {
  const size_t bytes =
      kOverheadBytes + response.id.size() + response.owner.size() + response.json->size();
  // Found out before a large response drives out its owner's others.
  size_t alone = bytes;
  for (const Turn& turn : response.turns) alone += turn->bytes;
  if (alone > kMaxBytes) return;
  std::lock_guard lock(mutex_);
  if (const auto old = by_id_.find(response.id); old != by_id_.end()) Erase(old->second);
  Owner& owner = OwnerOf(response.owner);
  owner.bytes += bytes;
  bytes_ += bytes;
  owner.responses.push_back({.id = response.id,
                             .owner = &owner,
                             .json = response.json,
                             .bytes = bytes,
                             .last = KeepTurns(response.turns, owner)});
  const Place place = std::prev(owner.responses.end());
  by_id_[place->id] = place;
  while (by_id_.size() > kMaxResponses) EraseOldestOfMost(/*by_bytes=*/false);
  while (bytes_ > kMaxBytes) EraseOldestOfMost(/*by_bytes=*/true);
}

// With mutex_ held.
const ResponseStore::Kept* ResponseStore::Find(std::string_view id, std::string_view owner) const {
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second->owner->name != owner) return nullptr;
  return &*found->second;
}

std::optional<StoredResponse> ResponseStore::Get(std::string_view id,
                                                 std::string_view owner) const {
  std::lock_guard lock(mutex_);
  const Kept* const kept = Find(id, owner);
  if (kept == nullptr) return std::nullopt;
  StoredResponse response = {.id = kept->id, .owner = kept->owner->name, .json = kept->json};
  for (const Node* node = kept->last; node != nullptr; node = node->before) {
    response.turns.push_back(node->turn);
  }
  std::reverse(response.turns.begin(), response.turns.end());
  return response;
}

bool ResponseStore::Delete(std::string_view id, std::string_view owner) {
  std::lock_guard lock(mutex_);
  if (Find(id, owner) == nullptr) return false;
  Erase(by_id_.find(id)->second);
  return true;
}

size_t ResponseStore::size() const {
  std::lock_guard lock(mutex_);
  return by_id_.size();
}

size_t ResponseStore::bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace millrace
