// Renders the settings as completions for shells.
#ifndef MILLRACE_CONFIG_COMPLETION_H_
#define MILLRACE_CONFIG_COMPLETION_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace millrace {

// Returns the output of --print-completion: a script for bash, zsh or fish that completes the
// commands, their flags, values where they are few, and paths. InvalidArgument for other shells.
absl::StatusOr<std::string> CompletionScript(std::string_view shell);

}  // namespace millrace

#endif  // MILLRACE_CONFIG_COMPLETION_H_
