// Renders the settings as the manual page millraced(8).
#ifndef MILLRACE_CONFIG_MAN_PAGE_H_
#define MILLRACE_CONFIG_MAN_PAGE_H_

#include <string>

namespace millrace {

// Returns the output of --print-man-page, in the macros of man(7).
std::string ManPage();

}  // namespace millrace

#endif  // MILLRACE_CONFIG_MAN_PAGE_H_
