// Answers in messages, each of which begins with its recipient: Functionary 3.2.
#ifndef MILLRACE_TEXT_TOOLS_RECIPIENT_PARSER_H_
#define MILLRACE_TEXT_TOOLS_RECIPIENT_PARSER_H_

#include <memory>
#include <string_view>
#include <vector>

#include "text/tools/output_parser.h"

namespace millrace {

// The text before a recipient, which the prompt has written for the first one, and the recipient
// of content.
inline constexpr std::string_view kRecipientOpen = ">>>";
inline constexpr std::string_view kRecipientAll = "all";

// Takes an answer apart: a line with "all" and content behind it, or with a tool's name and its
// arguments. An answer that begins in another way is content.
std::unique_ptr<OutputParser> MakeRecipientParser(const std::vector<ToolSignature>& tools);

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOOLS_RECIPIENT_PARSER_H_
