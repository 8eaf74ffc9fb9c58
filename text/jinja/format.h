// Python's string formatting: str.format() and the % operator.
#ifndef MILLRACE_TEXT_JINJA_FORMAT_H_
#define MILLRACE_TEXT_JINJA_FORMAT_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "text/jinja/value.h"

namespace millrace::jinja {

// Computes `pattern.format(*positional, **named)`. Fields may have items and attributes
// ("{0.a[b]}"), !r or !s and a format ("{:>8.2f}"), but no fields within a format.
absl::StatusOr<std::string> FormatFields(Budget& budget, std::string_view pattern,
                                         const List& positional, const Dict& named);

// Computes `pattern % values`: a tuple has a value for each directive, a dict those that are named
// ("%(name)s"), anything else is the only one.
absl::StatusOr<std::string> FormatPercent(Budget& budget, std::string_view pattern,
                                          const Value& values);

}  // namespace millrace::jinja

#endif  // MILLRACE_TEXT_JINJA_FORMAT_H_
