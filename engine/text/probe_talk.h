// Conversations whose texts are marks, by which it is seen what a chat template writes.
#ifndef MILLRACE_ENGINE_TEXT_PROBE_TALK_H_
#define MILLRACE_ENGINE_TEXT_PROBE_TALK_H_

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "engine/request/request.h"
#include "formats/json/json.h"

namespace millrace {

// These texts show that a prompt has a tool: its name, its description and its parameter.
inline constexpr std::string_view kToolMarks[] = {"probe_tool", "probe_about", "probe_argument"};

inline std::string ProbeTools() {
  return OrderedJson{
      {{"type", "function"},
       {"function",
        {{"name", kToolMarks[0]},
         {"description", kToolMarks[1]},
         {"parameters",
          {{"type", "object"},
           {"properties", {{kToolMarks[2], {{"type", "string"}, {"description", "the argument"}}}}},
           {"required", {kToolMarks[2]}}}}}}}}
      .dump();
}

// A conversation, each of whose texts is a mark that is looked for in the prompt.
class Talk {
 public:
  Talk& Say(std::string role) {
    talk_.messages.push_back({.role = std::move(role), .content = Mark()});
    return *this;
  }
  Talk& System() { return Say("system"); }
  Talk& User() { return Say("user"); }
  Talk& Assistant() { return Say("assistant"); }
  // A turn of two parts.
  Talk& Parts(std::string role) {
    Say(std::move(role));
    ChatMessage& message = talk_.messages.back();
    const std::string second = Mark();
    message.part_sizes = {message.content.size(), second.size()};
    message.content += "\n" + second;
    return *this;
  }
  // A turn with so many calls.
  Talk& Calls(int count, bool content = false, bool reasoning = false) {
    ChatMessage message{.role = "assistant"};
    if (content) message.content = Mark();
    // A template may drop reasoning: it is looked for where it is the question.
    if (reasoning) message.reasoning = "probe thought";
    for (int i = 0; i < count; ++i) {
      message.tool_calls.push_back({.id = StrCat("call_0123456789abcdefghij", ++calls_),
                                    .name = Mark(),
                                    .arguments = OrderedJson{{kToolMarks[2], Mark()}}.dump()});
    }
    talk_.messages.push_back(std::move(message));
    return *this;
  }
  // The results of the last turn's calls.
  Talk& Results() {
    const auto calls = talk_.messages.back().tool_calls;
    for (const ToolCall& call : calls) {
      talk_.messages.push_back({.role = "tool", .content = Mark(), .tool_call_id = call.id});
    }
    return *this;
  }
  Talk& Tools() {
    talk_.tools = ProbeTools();
    return *this;
  }
  ChatMessage& last() { return talk_.messages.back(); }
  ChatMessage& call() {
    return *std::find_if(talk_.messages.begin(), talk_.messages.end(),
                         [](const ChatMessage& one) { return !one.tool_calls.empty(); });
  }
  void Want(std::string mark) { marks_.push_back(std::move(mark)); }
  const Chat& chat() const { return talk_; }
  const std::vector<std::string>& marks() const { return marks_; }

 private:
  std::string Mark() { return marks_.emplace_back(StrCat("probe", marks_.size(), "mark")); }

  Chat talk_;
  std::vector<std::string> marks_;
  int calls_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_TEXT_PROBE_TALK_H_
