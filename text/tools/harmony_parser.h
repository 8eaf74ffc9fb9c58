// The answers of gpt-oss: messages with channels, in OpenAI's harmony format.
#ifndef MILLRACE_TEXT_TOOLS_HARMONY_PARSER_H_
#define MILLRACE_TEXT_TOOLS_HARMONY_PARSER_H_

#include <memory>

#include "text/tools/output_parser.h"

namespace millrace {

// The channel `analysis` is the reasoning, a message to functions.NAME is a call, everything else
// is content. `calls`: without it, a message to a function is content, too. The text begins inside
// of a message's header, since the prompt ends with <|start|>assistant. `separates`: without it,
// messages that are no calls are content as they stand, with all markers.
std::unique_ptr<OutputParser> MakeHarmonyParser(bool calls, bool separates);

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOOLS_HARMONY_PARSER_H_
