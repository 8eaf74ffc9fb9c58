// Tells when a file has changed.
#ifndef MILLRACE_BASE_FILE_STAMP_H_
#define MILLRACE_BASE_FILE_STAMP_H_

#include <string>

namespace millrace {

// Returns a text that changes with the file, be it written in place, replaced, or reached by a link
// that changes. Empty: there is no such file.
std::string FileStamp(const std::string& path);

}  // namespace millrace

#endif  // MILLRACE_BASE_FILE_STAMP_H_
