// Calls, as a model writes them, for templates that do not write them.
#ifndef MILLRACE_ENGINE_TEXT_CALL_TEXT_H_
#define MILLRACE_ENGINE_TEXT_CALL_TEXT_H_

#include <cstddef>
#include <string>

#include "absl/types/span.h"
#include "engine/request/request.h"
#include "text/tools/tool_format.h"

namespace millrace {

// Returns the calls of one turn in this format. Arguments are JSON objects, of which formats with
// an element or a name for each argument take the members; any other text stands in their place.
// `before`: the calls of the turns before.
std::string CallsText(const ToolFormat& format, absl::Span<const ToolCall> calls, size_t before);

}  // namespace millrace

#endif  // MILLRACE_ENGINE_TEXT_CALL_TEXT_H_
