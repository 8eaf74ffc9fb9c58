// A client of OpenAI's chat API, as `millraced chat` needs one.
#ifndef MILLRACE_SERVER_CHAT_CHAT_CLIENT_H_
#define MILLRACE_SERVER_CHAT_CHAT_CLIENT_H_

#include <atomic>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "hub/http_client.h"

namespace millrace {

// Joins the bytes of a stream of server-sent events to events, whatever the pieces it comes in.
class EventReader {
 public:
  // Returns the data of the events that `bytes` complete; comments and other fields are left out.
  std::vector<std::string> Add(std::string_view bytes);

 private:
  void TakeLine(std::string_view line, std::vector<std::string>& events);

  std::string line_;   // begun
  std::string event_;  // its data so far
  bool has_data_ = false;
};

// What an event of an answer adds to it.
struct ChatDelta {
  std::string text;
  std::string reasoning;
  std::string finish_reason;  // "length"; empty: it goes on
};

// Reads the data of an event. Unavailable, with the server's message: the event is an error.
absl::StatusOr<ChatDelta> ReadDelta(std::string_view data);

class ChatClient {
 public:
  // `url` is a server's, with or without /v1 at its end. `stop`, once true, ends a request with
  // Cancelled; it outlives the client.
  ChatClient(const std::string& url, std::string key, const std::atomic<bool>* stop);

  // Returns the first model that the server names.
  absl::StatusOr<std::string> FirstModel();

  // Sends a request that streams, and calls `on_delta` with what comes. Errors carry the server's
  // message.
  absl::Status Ask(const nlohmann::ordered_json& body,
                   const std::function<void(const ChatDelta&)>& on_delta);

 private:
  const std::string base_;  // without /v1
  const std::string key_;
  HttpClient http_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_CHAT_CHAT_CLIENT_H_
