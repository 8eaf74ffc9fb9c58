// The responses that /v1/responses keeps: to be retrieved, deleted, and gone on from.
#ifndef MILLRACE_SERVER_HTTP_RESPONSES_RESPONSE_STORE_H_
#define MILLRACE_SERVER_HTTP_RESPONSES_RESPONSE_STORE_H_

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/request/request.h"
#include "server/http/api/http_message.h"

namespace millrace {

// The messages that one request added to a conversation, with its answer. Responses that go on from
// each other share the turns before them.
struct TurnMessages {
  explicit TurnMessages(std::vector<ChatMessage> messages);
  const std::vector<ChatMessage> messages;
  const size_t bytes;  // that they take
};
using Turn = std::shared_ptr<const TurnMessages>;

struct StoredResponse {
  std::string id;
  std::string owner;                       // the tenant, or the credential, that it was made with
  std::shared_ptr<const SharedBody> json;  // the response, as it was sent
  std::vector<Turn> turns;  // of the conversation, without instructions, up to its own answer
};

// Bounded: beyond so many responses, or bytes, the owner that holds most loses its oldest ones. So
// an owner alone may use all; an owner that holds no more than its equal share, of all that hold
// some, loses nothing. Turns count as long as a response that is kept has them. Thread-safe.
class ResponseStore {
 public:
  static constexpr size_t kMaxResponses = 4096;
  static constexpr size_t kMaxBytes = 64 << 20;

  // Keeps the response, unless its owner's share has no place for it.
  void Put(const StoredResponse& response);
  // Returns nothing for one that is not there, and for another owner's.
  std::optional<StoredResponse> Get(std::string_view id, std::string_view owner) const;
  bool Delete(std::string_view id, std::string_view owner);
  size_t size() const;
  size_t bytes() const;

 private:
  // A turn that is kept. A conversation is a list from its last turn to its first one.
  struct Node {
    Turn turn;
    Node* before = nullptr;
    size_t users = 0;  // responses that end with it, and nodes that follow it
  };
  struct Owner;
  struct Kept {
    std::string id;
    Owner* owner = nullptr;
    std::shared_ptr<const SharedBody> json;
    size_t bytes = 0;      // without those of its turns
    Node* last = nullptr;  // null: no turns
  };
  struct Owner {
    std::string name;
    std::list<Kept> responses;  // oldest first
    size_t bytes = 0;           // with those of its turns
  };
  using Place = std::list<Kept>::iterator;

  // With mutex_ held.
  Node* KeepTurns(const std::vector<Turn>& turns, Owner& owner);
  void LetGo(Node* last, Owner& owner);
  Owner& OwnerOf(const std::string& name);
  void Erase(Place response);
  void EraseOldestOfMost(bool by_bytes);
  const Kept* Find(std::string_view id, std::string_view owner) const;

  mutable std::mutex mutex_;                          // guards what follows
  std::map<std::string, Owner, std::less<>> owners_;  // none without responses
  std::map<std::string, Place, std::less<>> by_id_;
  absl::flat_hash_map<const TurnMessages*, std::unique_ptr<Node>> nodes_;
  size_t bytes_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_RESPONSES_RESPONSE_STORE_H_
