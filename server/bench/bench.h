// `millraced bench`.
#ifndef MILLRACE_SERVER_BENCH_BENCH_H_
#define MILLRACE_SERVER_BENCH_BENCH_H_

#include <string>

#include "absl/status/status.h"
#include "config/settings.h"

namespace millrace {

// Loads the model, measures each point, prints tables on stdout as they come, and writes
// settings.bench_json. `given` says which settings were given. An error too where a point's figures
// are void: they are printed and written all the same.
absl::Status RunBench(const Settings& settings, const std::string& given);

}  // namespace millrace

#endif  // MILLRACE_SERVER_BENCH_BENCH_H_
