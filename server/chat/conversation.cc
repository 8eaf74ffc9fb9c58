#include "server/chat/conversation.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/strings.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kHelp[] =
    "/system TEXT      what the model is told before the chat; without TEXT nothing\n"
    "/set NAME VALUE   a field of requests: temperature, top_p, max_tokens, seed ...\n"
    "/retry            answers the last message again\n"
    "/clear            forgets the chat, but for the system message\n"
    "/exit             ends; so do /bye and Ctrl-D\n"
    "\"\"\"               begins and ends a message of several lines\n"
    "Ctrl-C            ends an answer\n";

}  // namespace

std::string ForTerminal(std::string_view text) {
  std::string shown;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F are control characters, too.
    const bool second_set =
        byte == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if (second_set) {
      ++i;
    } else if ((byte >= 0x20 && byte != 0x7F) || byte == '\n' || byte == '\t') {
      shown += text[i];
    }
  }
  return shown;
}

Conversation::Next Conversation::Take(std::string_view line, std::string& reply) {
  reply.clear();
  if (line.starts_with('/')) return Command(line, reply);
  if (Trim(line).empty()) return Next::kRead;
  messages_.push_back({{"role", "user"}, {"content", std::string(line)}});
  return Next::kAsk;
}

void Conversation::Answer(std::string text) {
  if (text.empty()) {
    if (!messages_.empty()) messages_.erase(messages_.size() - 1);
    return;
  }
  messages_.push_back({{"role", "assistant"}, {"content", std::move(text)}});
}

Json Conversation::Request() const {
  Json messages = Json::array();
  if (!system_.empty()) messages.push_back({{"role", "system"}, {"content", system_}});
  messages.insert(messages.end(), messages_.begin(), messages_.end());
  Json body = {{"model", model_}, {"stream", true}, {"messages", std::move(messages)}};
  body.update(fields_);
  return body;
}

Conversation::Next Conversation::Command(std::string_view line, std::string& reply) {
  const size_t space = std::min(line.find(' '), line.size());
  const std::string_view word = line.substr(0, space);
  const std::string_view rest = Trim(line.substr(space));
  if (word == "/exit" || word == "/bye" || word == "/quit") return Next::kEnd;
  if (word == "/help" || word == "/?") {
    reply = kHelp;
  } else if (word == "/clear") {
    messages_ = Json::array();
    reply = "The chat begins anew.\n";
  } else if (word == "/system") {
    system_ = std::string(rest);
    reply = rest.empty() ? "There is no system message.\n" : "The system message is set.\n";
  } else if (word == "/set") {
    reply = Set(rest);
  } else if (word == "/retry") {
    if (messages_.size() >= 2) {
      messages_.erase(messages_.size() - 1);
      return Next::kAsk;
    }
    reply = "There is no answer yet.\n";
  } else {
    reply = StrCat("There is no ", Printable(word), "; /help lists what there is.\n");
  }
  return Next::kRead;
}

std::string Conversation::Set(std::string_view words) {
  const size_t space = std::min(words.find(' '), words.size());
  const std::string name(words.substr(0, space));
  const std::string value(Trim(words.substr(space)));
  constexpr std::array<std::string_view, 3> kOwn = {"model", "messages", "stream"};
  if (name.empty() || std::find(kOwn.begin(), kOwn.end(), name) != kOwn.end()) {
    return "/set NAME VALUE sets a field of requests, as /set temperature 0.2\n";
  }
  if (value.empty()) {
    fields_.erase(name);
    return StrCat(Printable(name), " is left to the server.\n");
  }
  Json json = Json::parse(value, nullptr, /*allow_exceptions=*/false);
  fields_[name] = json.is_discarded() ? Json(value) : std::move(json);
  return "";
}

}  // namespace millrace
