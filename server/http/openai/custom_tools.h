// OpenAI's custom tools, which take a text in the place of JSON arguments. The model is shown a
// function whose only argument is that text.
#ifndef MILLRACE_SERVER_HTTP_OPENAI_CUSTOM_TOOLS_H_
#define MILLRACE_SERVER_HTTP_OPENAI_CUSTOM_TOOLS_H_

#include <string>
#include <string_view>
#include <vector>

#include "engine/request/request.h"
#include "server/http/json/json_reader.h"

namespace millrace {

// The allowed names of tools, in words.
inline constexpr std::string_view kToolNames = "1 to 128 letters, digits, _, -, . and /";
bool IsToolName(std::string_view name);

// Where the format has its grammar: beside its type, as in responses, or in an object of its own,
// as in chats.
enum class GrammarPlace { kFormat, kObject };

// Reads the name, description and format of a custom tool. Appends it to `tools` as the function
// that the model is shown, and to `texts`.
void ReadCustomTool(FieldReader& tool, const std::string& path, GrammarPlace place,
                    OrderedJson& tools, TextTools& texts);

// Returns the arguments of a function that takes this text.
std::string TextArguments(std::string_view text);

// Turns the arguments of the calls of one answer into the texts, as they come, where a tool takes a
// text. Arguments of another shape are the text themselves.
class ArgumentTexts {
 public:
  explicit ArgumentTexts(const TextTools& tools) : tools_(tools) {}

  // Rewrites the deltas of one event, and marks them with is_text.
  void Take(std::vector<ToolCallDelta>& calls);
  // Appends the rest of the current call, which has ended.
  void Flush(std::vector<ToolCallDelta>& calls);

 private:
  enum class State { kNone, kHead, kText, kEscape, kEnd, kWhole };

  void Step(char c, std::string& text);
  void EndEscape(std::string& text);

  TextTools tools_;
  State state_ = State::kNone;
  int32_t index_ = 0;   // of the current call
  std::string raw_;     // its arguments until the text begins, or all of them
  size_t head_ = 0;     // bytes of kHead that have come, without white space
  std::string escape_;  // a backslash and what follows it
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_OPENAI_CUSTOM_TOOLS_H_
