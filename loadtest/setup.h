// The set-up of both sides of a run: versions, machines and flags.
#ifndef MILLRACE_LOADTEST_SETUP_H_
#define MILLRACE_LOADTEST_SETUP_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "loadtest/options.h"

namespace millrace {

// Names and values, in the order in which they are shown.
using Facts = std::vector<std::pair<std::string, std::string>>;

// Returns this program's version, its machine and its flags.
Facts GeneratorFacts(const Options& options);

// Returns "4 x Intel(R) Xeon(R) CPU, 15.6 GiB of memory". `cpuinfo`: what /proc/cpuinfo has.
std::string MachineText(std::string_view cpuinfo, unsigned cores, double memory_bytes);

// Returns what a server says of itself over HTTP: its version, and the plain members that its list
// of models has of `model`. `version` and `models`: the bodies of /version and /v1/models, which
// may be anything.
Facts ServerFacts(std::string_view version, std::string_view models, std::string_view model);

// Returns the arguments as a shell reads them, without the values of --api-key and --header.
std::string FlagsText(const std::vector<std::string>& arguments);

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_SETUP_H_
