// Renders the table of settings for people.
#ifndef MILLRACE_CONFIG_HELP_H_
#define MILLRACE_CONFIG_HELP_H_

#include <string>
#include <string_view>

#include "config/settings.h"
#include "config/settings_table.h"

namespace millrace {

// Returns the version, "0.1.0".
std::string_view Version();

// Returns the output of --version, "millraced 0.1.0\n".
std::string VersionText();

// Returns how a setting's flag is written: "--http-port PORT", "--[no-]prefix-caching".
std::string FlagUsage(const Setting& setting);

// Returns the output of --help, or of a command's own, `millraced bench --help`: of a command that
// takes most settings the few that most need, in at most 30 lines, else what HelpText returns.
std::string ShortHelpText(Command command);

// Returns the output of --help-all: every setting that the command takes.
std::string HelpText(Command command);

// Returns the first steps, for someone who typed `millraced` alone.
std::string UsageText();

// Returns the table of docs/settings.md, between its markers "<!-- settings -->" and "<!--
// /settings -->".
std::string SettingsTableMarkdown();

}  // namespace millrace

#endif  // MILLRACE_CONFIG_HELP_H_
