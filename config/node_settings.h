// The settings of a model that runs on several hosts.
#ifndef MILLRACE_CONFIG_NODE_SETTINGS_H_
#define MILLRACE_CONFIG_NODE_SETTINGS_H_

#include <cstdint>
#include <vector>

#include "config/settings_table.h"

namespace millrace {

// The most ranks of a model, and so the most nodes.
inline constexpr int32_t kMaxRanks = 64;

std::vector<Setting> NodeSettings();

}  // namespace millrace

#endif  // MILLRACE_CONFIG_NODE_SETTINGS_H_
