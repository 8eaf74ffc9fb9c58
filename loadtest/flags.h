// The table of all flags, from which the parser, --help, the manual page and the completions come.
#ifndef MILLRACE_LOADTEST_FLAGS_H_
#define MILLRACE_LOADTEST_FLAGS_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "loadtest/options.h"

namespace millrace {

struct LoadFlag {
  std::string_view group;
  std::string_view name;   // without the dashes
  std::string_view alias;  // vLLM's name, where it is another one
  std::string_view value;  // what stands for the value in --help; empty: the flag takes none
  std::string_view help;
  std::vector<std::string_view> choices;
  // Sets the option. Its error says what is allowed, and names no flag.
  std::function<absl::Status(Options&, std::string_view)> set;
  bool many = false;  // it takes all arguments up to the next flag
};

const std::vector<LoadFlag>& LoadFlags();

std::string LoadtestHelp();
// Returns millrace-loadtest(1), in the macros of man(7).
std::string LoadtestManPage();
// Returns a script that completes flags and their choices for bash, zsh or fish; empty for others.
std::string LoadtestCompletion(std::string_view shell);

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_FLAGS_H_
