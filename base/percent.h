// Escapes of URLs and of the variables that borrow them.
#ifndef MILLRACE_BASE_PERCENT_H_
#define MILLRACE_BASE_PERCENT_H_

#include <string>
#include <string_view>

namespace millrace {

// Returns the text with its escapes decoded, "org%2Fmodel" as "org/model"; as it is if an escape is
// wrong.
std::string PercentDecoded(std::string_view text);

}  // namespace millrace

#endif  // MILLRACE_BASE_PERCENT_H_
