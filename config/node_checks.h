// Checks the settings of several hosts, which depend on one another.
#ifndef MILLRACE_CONFIG_NODE_CHECKS_H_
#define MILLRACE_CONFIG_NODE_CHECKS_H_

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "config/settings.h"

namespace millrace {

// A setting that others contradict, and how.
struct Contradicted {
  std::string_view name;
  std::string what;
};

// Returns the first contradiction, if there is one. `is_given` says whether a setting was given.
// Node 0 alone serves, and other nodes take the settings of that all the same: one command or one
// manifest is for all nodes.
std::optional<Contradicted> CheckNodes(const Settings& settings,
                                       const std::function<bool(std::string_view name)>& is_given);

}  // namespace millrace

#endif  // MILLRACE_CONFIG_NODE_CHECKS_H_
