// The string formats of JSON schemas that are enforced, as regular expressions.
#ifndef MILLRACE_TEXT_GRAMMAR_STRING_FORMATS_H_
#define MILLRACE_TEXT_GRAMMAR_STRING_FORMATS_H_

#include <optional>
#include <string>
#include <string_view>

namespace millrace {

// Returns the expression that a whole string of the format matches, perhaps stricter than the
// format. Nothing: the format is not known. Empty: it says nothing about a string's characters, as
// OpenAPI's "int32" and "password" do.
std::optional<std::string> FormatRegex(std::string_view format);

}  // namespace millrace

#endif  // MILLRACE_TEXT_GRAMMAR_STRING_FORMATS_H_
