// Renders the table of settings for people.
#ifndef MILLRACE_CONFIG_HELP_H_
#define MILLRACE_CONFIG_HELP_H_

#include <string>
#include <string_view>

#include "config/settings.h"

namespace millrace {

// "0.1.0".
std::string_view Version();

// "millraced 0.1.0\n", for --version.
std::string VersionText();

// For --help, and `millraced bench --help`.
std::string HelpText(Command command);

// The table of docs/settings.md, between its markers "<!-- settings -->" and "<!-- /settings -->".
std::string SettingsTableMarkdown();

}  // namespace millrace

#endif  // MILLRACE_CONFIG_HELP_H_
