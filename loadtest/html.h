// Text that is safe in HTML.
#ifndef MILLRACE_LOADTEST_HTML_H_
#define MILLRACE_LOADTEST_HTML_H_

#include <string>
#include <string_view>

namespace millrace {

// Escapes hostile text for an element or a quoted attribute. Bytes that are no UTF-8, and
// characters that HTML forbids, become U+FFFD; those that change the direction of writing are shown
// as codes.
std::string EscapeHtml(std::string_view text);

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_HTML_H_
