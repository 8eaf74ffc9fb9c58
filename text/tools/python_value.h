// Reads values as Python writes them.
#ifndef MILLRACE_TEXT_TOOLS_PYTHON_VALUE_H_
#define MILLRACE_TEXT_TOOLS_PYTHON_VALUE_H_

#include <optional>
#include <string>
#include <string_view>

namespace millrace {

// Returns a Python literal as JSON: strings in either quotes, numbers, True, False, None, lists,
// tuples and dictionaries whose keys are strings. What is JSON already is read as well. Nothing:
// the text is anything else.
std::optional<std::string> PythonValueToJson(std::string_view text);

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOOLS_PYTHON_VALUE_H_
