// Log lines whose values are members of their own where lines are JSON.
#ifndef MILLRACE_BASE_LOG_FIELDS_H_
#define MILLRACE_BASE_LOG_FIELDS_H_

#include <span>
#include <string>
#include <string_view>

#include "base/log.h"

namespace millrace {

struct LogField {
  std::string_view name;
  std::string value;  // a text, or a number as JSON writes it
  bool is_number = false;
};

// Logs a message, as a Logger's calls do, of the request `request_id` unless that is empty. A line
// of JSON has the `fields` behind its message; a line of text shows the message alone, which
// therefore says the same.
void LogWithFields(LogLevel level, LogComponent component, std::string_view request_id,
                   std::string_view message, std::span<const LogField> fields);

}  // namespace millrace

#endif  // MILLRACE_BASE_LOG_FIELDS_H_
