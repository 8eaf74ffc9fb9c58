// Reads the command line, and helps those who mistyped a flag or come from another server.
#ifndef MILLRACE_CONFIG_FLAGS_H_
#define MILLRACE_CONFIG_FLAGS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "config/sources.h"

namespace millrace {

// Flags that print something instead of serving, without their dashes.
inline constexpr std::string_view kPrintFlags[] = {
    "help",           "help-all",      "version",          "print-settings-table",
    "print-man-page", "print-kernels", "print-completion", "print-foreign-flags"};

// Reads `--name value`, `--name=value`, and for switches `--name`, `--no-name`, `--name=true`; `-m`
// for --model; and one argument without a flag, which is the model; behind it the prompt of `chat`.
// Flags of vLLM, SGLang and llama.cpp (foreign_flags.h) are taken as ours where they mean the same.
// A switch that asks for what is always so adds a line to `warnings`.
absl::StatusOr<std::vector<Assignment>> ReadFlags(Command command,
                                                  const std::vector<std::string>& arguments,
                                                  std::vector<std::string>& warnings);

// Returns what to do about a name that is no setting's: "did you mean --http-port?", what replaces
// a flag of another server, or "see --help". `dashes` stand before our names.
std::string AdviceOnUnknown(std::string_view name, std::string_view dashes);

}  // namespace millrace

#endif  // MILLRACE_CONFIG_FLAGS_H_
