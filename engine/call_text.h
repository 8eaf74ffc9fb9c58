// Calls, as a model writes them, for templates that do not write them.
#ifndef MILLRACE_ENGINE_CALL_TEXT_H_
#define MILLRACE_ENGINE_CALL_TEXT_H_

#include <string>
#include <string_view>

#include "text/tools/output_format.h"

namespace millrace {

// Returns a call in this format. `arguments` is a JSON object, of which formats with an element for
// each argument take the members; any other text stands in the place of the arguments.
std::string CallText(const ToolFormat& format, std::string_view name, std::string_view arguments);

}  // namespace millrace

#endif  // MILLRACE_ENGINE_CALL_TEXT_H_
