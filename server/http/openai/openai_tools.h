// Tools and reasoning in the bodies of chats.
#ifndef MILLRACE_SERVER_HTTP_OPENAI_OPENAI_TOOLS_H_
#define MILLRACE_SERVER_HTTP_OPENAI_OPENAI_TOOLS_H_

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request/request.h"
#include "server/http/json/json_reader.h"

namespace millrace {

inline constexpr size_t kMaxTools = 128;  // of one request

// The client's choice of tools, whatever its protocol.
struct ToolChoice {
  enum class Kind { kAuto, kNone, kAny, kNamed } kind = Kind::kAuto;
  struct Named {
    std::string name;
    bool takes_text = false;  // it is named as a custom tool
  };
  Named named = {};  // of kNamed
  // Not empty: the model is shown these alone (allowed_tools).
  std::vector<Named> allowed = {};
};

// Reads tool_choice where it is auto, none or required, which is auto if it is not there. Returns
// the object that came in place of a word, or null. Refuses other values; `allowed` names the right
// ones.
const OrderedJson* ReadChoiceWord(FieldReader& fields, std::string_view allowed,
                                  ToolChoice& choice);

// Reads the mode of allowed_tools: auto or required.
void ReadAllowedMode(FieldReader& fields, ToolChoice& choice);

// Checks one tool's function, whose fields are read from `function`: its name, description,
// parameters and strict.
void CheckFunction(FieldReader& function, std::string_view parameters_name = "parameters");

// Puts the tools (OpenAI's functions, as JSON) and the choice into the chat, which has its
// text_tools, and the request. An error is about `tool_choice`, or of two tools with one name about
// `tools`. `auto_allowed`: --enable-auto-tool-choice.
absl::Status ApplyTools(OrderedJson tools, const ToolChoice& choice, bool auto_allowed, Chat& chat,
                        GenerateRequest& request);

// Reads tools, tool_choice and parallel_tool_calls of a chat, and reasoning_effort,
// include_reasoning and separate_reasoning.
void ReadChatTools(FieldReader& fields, bool auto_allowed, Chat& chat, GenerateRequest& request);
void ReadReasoning(FieldReader& fields, bool& include_reasoning, Chat& chat,
                   GenerateRequest& request);

// Reads a reasoning effort, which the template interprets.
void ReadEffort(FieldReader& fields, std::string_view name, Chat& chat);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_OPENAI_OPENAI_TOOLS_H_
