// Splits a model's answer into what the user reads, its reasoning and its tool calls, as it comes.
#ifndef MILLRACE_TEXT_TOOLS_OUTPUT_PARSER_H_
#define MILLRACE_TEXT_TOOLS_OUTPUT_PARSER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

// A part of one tool call. The first part of a call has its name; the arguments of all parts,
// joined, are the JSON text of its arguments.
struct ToolCallDelta {
  int32_t index = 0;  // of the call within the answer
  std::string name;
  std::string arguments;
  std::string id = {};   // with the name: the model's own for the call; empty: it gave none
  bool is_text = false;  // `arguments` is a text that an endpoint has taken out of the JSON
};

// The additions to the answer by a piece of text.
struct OutputDelta {
  std::string content;
  std::string reasoning;
  std::vector<ToolCallDelta> calls;

  // Begins the next call.
  void BeginCall(int32_t index, std::string name, std::string id = {}) {
    calls.push_back({index, std::move(name), "", std::move(id)});
  }
  // Adds to the arguments of a call that has begun.
  void AddArguments(int32_t index, std::string_view text) {
    if (text.empty()) return;
    if (calls.empty() || calls.back().index != index) calls.push_back({index, "", "", ""});
    calls.back().arguments += text;
  }
};

// Returns whether a tool's name may have this byte.
inline bool IsCallNameByte(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         c == '-' || c == '.' || c == ':' || c == '/';
}

// How an answer ended: the model, or a stop string, ended it; or the tokens were used up.
enum class AnswerEnd { kWhole, kCut };

// Follows one answer. The text may come in any pieces: a parser works byte by byte, so that its
// deltas, joined, do not depend on them. It never fails: text that only looked like a call becomes
// content.
class OutputParser {
 public:
  virtual ~OutputParser() = default;

  void Add(std::string_view text, OutputDelta* out) {
    for (const char c : text) Step(c, out);
  }
  // Appends what was held back, once the answer has ended. A call that has begun and lacks its end
  // is closed, unless the answer was cut off.
  virtual void Finish(AnswerEnd end, OutputDelta* out) = 0;

  // Says that the text so far, which the prompt ends with, begins a call for certain.
  virtual void Commit(OutputDelta*) {}

  // Returns whether the text so far ends inside of reasoning.
  virtual bool in_reasoning() const { return false; }
  // Returns whether the end of the text, which is in reasoning, may turn out to be a call.
  virtual bool may_be_call() const { return false; }
  // Returns how many calls are complete.
  virtual int32_t complete_calls() const { return 0; }

 protected:
  friend class ThinkParser;
  virtual void Step(char c, OutputDelta* out) = 0;
};

// A tool as a parser needs it: its name, and the schema of its parameters ("" if it has none).
struct ToolSignature {
  std::string name;
  std::string parameters;
};

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOOLS_OUTPUT_PARSER_H_
