// The settings of the endpoints, and of who may reach them.
#ifndef MILLRACE_CONFIG_ENDPOINT_SETTINGS_H_
#define MILLRACE_CONFIG_ENDPOINT_SETTINGS_H_

#include <vector>

#include "config/settings_table.h"

namespace millrace {

std::vector<Setting> EndpointSettings();
std::vector<Setting> AccessSettings();

}  // namespace millrace

#endif  // MILLRACE_CONFIG_ENDPOINT_SETTINGS_H_
