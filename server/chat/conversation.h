// The state of a chat: its messages, what requests ask for beside them, and its commands.
#ifndef MILLRACE_SERVER_CHAT_CONVERSATION_H_
#define MILLRACE_SERVER_CHAT_CONVERSATION_H_

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace millrace {

// Returns a model's text without what a terminal would take for orders: control characters but line
// feeds and tabs.
std::string ForTerminal(std::string_view text);

class Conversation {
 public:
  // `system` may be empty: there is no such message then.
  Conversation(std::string model, std::string system)
      : model_(std::move(model)), system_(std::move(system)) {}

  // What is to be done after a line of the input.
  enum class Next { kAsk, kRead, kEnd };

  // Takes a line: a message, or a command that begins with a slash. `reply` is set to what the
  // command says, which may be nothing.
  Next Take(std::string_view line, std::string& reply);

  // Takes the model's answer; one that broke off counts as far as it came. Without a text the
  // message is taken back, so that two messages of the user never follow each other.
  void Answer(std::string text);

  // Sets a field of requests.
  void SetField(const std::string& name, nlohmann::ordered_json value) {
    fields_[name] = std::move(value);
  }

  // Returns the body of the request that asks for the next answer.
  nlohmann::ordered_json Request() const;

 private:
  Next Command(std::string_view line, std::string& reply);
  std::string Set(std::string_view words);

  const std::string model_;
  std::string system_;
  nlohmann::ordered_json messages_ = nlohmann::ordered_json::array();  // without the system's
  nlohmann::ordered_json fields_ = nlohmann::ordered_json::object();
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_CHAT_CONVERSATION_H_
