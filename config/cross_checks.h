// Checks what depends on more than one setting, or on the command.
#ifndef MILLRACE_CONFIG_CROSS_CHECKS_H_
#define MILLRACE_CONFIG_CROSS_CHECKS_H_

#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "config/commands.h"
#include "config/settings.h"
#include "config/sources.h"

namespace millrace {

// The last assignment of each setting that was given, by name; of a list, with the values that it
// added to.
using GivenSettings = std::map<std::string_view, Assignment>;

// Returns the value as messages show it: in quotes, and of a secret only that it is one.
std::string ShownValue(const Assignment& assignment);

// Returns INVALID_ARGUMENT, with the setting, where its value comes from and what is expected, if
// `settings` contradict one another or if `command` does not take one that was given.
absl::Status CrossCheck(const Settings& settings, const GivenSettings& given, Command command);

}  // namespace millrace

#endif  // MILLRACE_CONFIG_CROSS_CHECKS_H_
