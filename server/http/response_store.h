// The responses that /v1/responses keeps: to be retrieved, deleted, and gone on from.
#ifndef MILLRACE_SERVER_HTTP_RESPONSE_STORE_H_
#define MILLRACE_SERVER_HTTP_RESPONSE_STORE_H_

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"

namespace millrace {

struct StoredResponse {
  std::string id;
  std::string owner;                      // the tenant, or the credential, that it was made with
  std::string json;                       // the response, as it was sent
  std::vector<ChatMessage> conversation;  // without instructions, up to its own answer
};

// Bounded: beyond so many responses, or bytes, the oldest ones go. Thread-safe.
class ResponseStore {
 public:
  static constexpr size_t kMaxResponses = 4096;
  static constexpr size_t kMaxBytes = 64 << 20;

  void Put(StoredResponse response);
  // Returns nothing for one that is not there, and for another owner's.
  std::optional<StoredResponse> Get(std::string_view id, std::string_view owner) const;
  bool Delete(std::string_view id, std::string_view owner);
  size_t size() const;

 private:
  using Responses = std::list<StoredResponse>;
  void Erase(Responses::iterator response);
  static size_t Bytes(const StoredResponse& response);

  mutable std::mutex mutex_;
  Responses responses_;  // oldest first; guarded by mutex_
  std::map<std::string, Responses::iterator, std::less<>> by_id_;  // guarded by mutex_
  size_t bytes_ = 0;                                               // guarded by mutex_
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_RESPONSE_STORE_H_
