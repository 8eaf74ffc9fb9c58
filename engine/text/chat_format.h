// How a model's chat template takes tools, calls and reasoning, and how the model answers with
// them.
#ifndef MILLRACE_ENGINE_TEXT_CHAT_FORMAT_H_
#define MILLRACE_ENGINE_TEXT_CHAT_FORMAT_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/request/request.h"
#include "engine/text/template_traits.h"
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
  TemplateTraits traits;
  TemplateTraits tool_traits;   // of the template for chats with tools, where a model has two
  bool takes_effort = false;    // it reads reasoning_effort
  bool takes_thinking = false;  // it reads enable_thinking
};

// Finds out what a template does, by its text and by what it renders. Where it does not show how
// calls are written, the tokenizer's special tokens, of which `tokens` has the texts, may.
// InvalidArgument: an unknown parser.
absl::StatusOr<ChatFormat> MakeChatFormat(std::string_view source,
                                          const absl::StatusOr<ChatTemplate>& chat_template,
                                          const ParserNames& parsers, std::string_view tokens = "");

// Adds the variables that the chat's own fields stand for to those that the client gave. `traits`
// are the format's, or those of text.
// InvalidArgument: a field that the template does not have.
absl::Status AddTemplateVariables(const Chat& chat, const ChatFormat& format,
                                  const TemplateTraits& traits, nlohmann::ordered_json* variables);

// Returns the names and parameters of a list of tools, which is JSON.
std::vector<ToolSignature> ToolSignatures(const std::string& tools);

}  // namespace millrace

#endif  // MILLRACE_ENGINE_TEXT_CHAT_FORMAT_H_
