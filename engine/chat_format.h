// How a model's chat template takes tools, calls and reasoning, and how the model answers with
// them.
#ifndef MILLRACE_ENGINE_CHAT_FORMAT_H_
#define MILLRACE_ENGINE_CHAT_FORMAT_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/request.h"
#include "text/chat_template.h"
#include "text/tools/output_format.h"

namespace millrace {

// The parsers of answers, named as --tool-call-parser and --reasoning-parser are.
struct ParserNames {
  std::string tools = "auto";
  std::string reasoning = "auto";
};

struct ChatFormat {
  OutputFormat output;
  // The template writes the tools, and turns with calls and their results. If it does not, they are
  // written for it as text, in a system message and in messages of the user.
  bool writes_tools = false;
  bool text_arguments = false;  // it wants a call's arguments as text, not as an object
  bool takes_effort = false;    // it reads reasoning_effort
  bool takes_thinking = false;  // it reads enable_thinking
};

// Finds out what a template does, by its text and by what it renders. InvalidArgument: an unknown
// parser.
absl::StatusOr<ChatFormat> MakeChatFormat(std::string_view source,
                                          const absl::StatusOr<ChatTemplate>& chat_template,
                                          const ParserNames& parsers);

// Returns the messages as the template takes them.
nlohmann::ordered_json TemplateMessages(const Chat& chat, const ChatFormat& format);

// Adds the variables that the chat's own fields stand for to those that the client gave.
// InvalidArgument: a field that the template does not have.
absl::Status AddTemplateVariables(const Chat& chat, const ChatFormat& format,
                                  nlohmann::ordered_json* variables);

// Returns the names and parameters of a list of tools, which is JSON.
std::vector<ToolSignature> ToolSignatures(const std::string& tools);

}  // namespace millrace

#endif  // MILLRACE_ENGINE_CHAT_FORMAT_H_
