// The settings of the model, and of sampling where a request says nothing.
#ifndef MILLRACE_CONFIG_MODEL_SETTINGS_H_
#define MILLRACE_CONFIG_MODEL_SETTINGS_H_

#include <vector>

#include "config/settings_table.h"

namespace millrace {

std::vector<Setting> ModelSettings();
std::vector<Setting> SamplingSettings();

}  // namespace millrace

#endif  // MILLRACE_CONFIG_MODEL_SETTINGS_H_
