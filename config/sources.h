// Reads settings from the environment and a file; flags.h reads the command line. Each becomes the
// same kind of list of assignments, whose values are not checked yet.
#ifndef MILLRACE_CONFIG_SOURCES_H_
#define MILLRACE_CONFIG_SOURCES_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "config/settings_table.h"

namespace millrace {

struct Assignment {
  const Setting* setting;
  std::string value;
  std::string
      origin;  // "flag --http-port", "environment MILLRACE_HTTP_PORT", "m.yaml:3: http_port"
  bool from_flag = false;  // or from an argument without one
};

// Returns the MILLRACE_ variables that are settings and not empty, of a list of "NAME=value".
// Others are left alone (Kubernetes sets MILLRACE_PORT and its like for a Service called millrace),
// but a name that is near a setting's adds a line to `warnings`.
std::vector<Assignment> ReadEnvironment(const std::vector<std::string>& environment,
                                        std::vector<std::string>& warnings);

// Says whether a pipe, such as a shell's <(...), may stand in the place of a file. A pipe gives its
// content once, and its reader waits for its writer.
enum class Pipes { kRead, kRefuse };

// Reads a file of at most 1 MiB that maps names to values, in YAML or JSON; a list may be a
// sequence.
absl::StatusOr<std::vector<Assignment>> ReadFile(const std::string& path, Pipes pipes);
// Reads settings from a file's text, as ReadFile does; `path` is for messages.
absl::StatusOr<std::vector<Assignment>> ParseFile(std::string_view text, const std::string& path);

}  // namespace millrace

#endif  // MILLRACE_CONFIG_SOURCES_H_
