// The settings of TLS, for HTTP's and gRPC's ports.
#ifndef MILLRACE_CONFIG_TLS_SETTINGS_H_
#define MILLRACE_CONFIG_TLS_SETTINGS_H_

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "config/node_checks.h"
#include "config/settings.h"
#include "config/settings_table.h"

namespace millrace {

std::vector<Setting> TlsSettings();

// Returns the first of them that contradicts another one.
std::optional<Contradicted> CheckTls(const Settings& settings,
                                     const std::function<bool(std::string_view name)>& is_given);

}  // namespace millrace

#endif  // MILLRACE_CONFIG_TLS_SETTINGS_H_
