// Loads Settings from the command line, the environment and a file.
#ifndef MILLRACE_CONFIG_LOAD_H_
#define MILLRACE_CONFIG_LOAD_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "config/settings.h"
#include "config/sources.h"

namespace millrace {

struct Startup {
  Command command = Command::kServe;
  Settings settings;

  // Not empty: print this to stdout and end with 0 (--help, --print-man-page and their like). With
  // Command::kUsage, print it to stderr and end with 1: nothing says what to do, neither an
  // argument nor the environment.
  // Settings are read for neither this nor Command::kPrintKernels.
  std::string print;

  // For the log, once it is set up. What was set and where, secrets left out: "device=fake (flag
  // --device), …". And what looks like a mistake but need not be one: environment variables whose
  // names are close to a setting's.
  std::string given;
  // The values of what was set, by name; a secret has a digest here, which shows a change.
  std::map<std::string, std::string> values;
  std::vector<std::string> warnings;
};

// Flags win over the environment (MILLRACE_HTTP_PORT), that over the file (--config), that over the
// defaults. A list's values add up within one of these, and a higher one replaces a lower one's. An
// environment variable that is set to nothing counts as absent.
//
// InvalidArgument with one line that names the setting, where it came from (a flag, an environment
// variable, file:line), its value and what is allowed: for an unknown name, for a value out of
// range, and for settings that contradict each other.
//
// `arguments` are the program's without its name; the first may be a command, "bench".
// `environment` is a list of "NAME=value". `pipes`: in the place of --config's file.
absl::StatusOr<Startup> LoadSettings(const std::vector<std::string>& arguments,
                                     const std::vector<std::string>& environment,
                                     Pipes pipes = Pipes::kRead);

// Returns the names of the settings that were set otherwise.
std::vector<std::string> ChangedSettings(const Startup& before, const Startup& after);

// Loads settings from main's argc and argv and the process's environment.
absl::StatusOr<Startup> LoadSettings(int argc, const char* const* argv, Pipes pipes = Pipes::kRead);

}  // namespace millrace

#endif  // MILLRACE_CONFIG_LOAD_H_
