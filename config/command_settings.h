// The settings of commands that do not serve.
#ifndef MILLRACE_CONFIG_COMMAND_SETTINGS_H_
#define MILLRACE_CONFIG_COMMAND_SETTINGS_H_

#include <vector>

#include "config/settings_table.h"

namespace millrace {

std::vector<Setting> BenchSettings();
std::vector<Setting> HealthSettings();
std::vector<Setting> ChatSettings();
std::vector<Setting> ConvertSettings();

}  // namespace millrace

#endif  // MILLRACE_CONFIG_COMMAND_SETTINGS_H_
