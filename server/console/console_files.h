// The files of the console, the page on the administration's port. They are part of the program.
#ifndef MILLRACE_SERVER_CONSOLE_CONSOLE_FILES_H_
#define MILLRACE_SERVER_CONSOLE_CONSOLE_FILES_H_

#include <string_view>

namespace millrace {

struct ConsoleFile {
  std::string_view path;  // of its URL: "/", "/console/chat.js"
  std::string_view content_type;
  std::string_view body;
};

// Returns the file of a URL's path; null if there is none.
const ConsoleFile* FindConsoleFile(std::string_view path);

}  // namespace millrace

#endif  // MILLRACE_SERVER_CONSOLE_CONSOLE_FILES_H_
