// The grammars that hold tool calls to the schemas of their tools.
#ifndef MILLRACE_ENGINE_TOOL_GRAMMAR_H_
#define MILLRACE_ENGINE_TOOL_GRAMMAR_H_

#include <optional>

#include "absl/status/statusor.h"
#include "engine/request.h"
#include "text/grammar/grammar.h"
#include "text/tools/output_format.h"

namespace millrace {

// Returns what the answer to a chat must be: one call, whose beginning the prompt has, if a call is
// forced; text and calls if a tool is strict; else nothing. `inside_reasoning`: the prompt has
// opened the reasoning. InvalidArgument: a schema that cannot be enforced in the model's form of
// calls.
absl::StatusOr<std::optional<GrammarSpec>> ToolGrammar(const Chat& chat, const OutputFormat& format,
                                                       bool inside_reasoning);

}  // namespace millrace

#endif  // MILLRACE_ENGINE_TOOL_GRAMMAR_H_
