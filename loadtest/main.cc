// millrace-loadtest: measures a server of language models.
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/status.h"
#include "loadtest/compare.h"
#include "loadtest/files.h"
#include "loadtest/html_report.h"
#include "loadtest/options.h"
#include "loadtest/result.h"
#include "loadtest/runner.h"
#include "loadtest/sweep.h"
#include "loadtest/text_report.h"

namespace millrace {
namespace {

std::atomic<bool> stop = false;

// The first signal ends the run, and its figures are printed; a second one ends the program.
void TakeSignals() {
  struct sigaction action = {};
  action.sa_handler = [](int) { stop = true; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

// Each stream takes a file descriptor.
void AllowManyConnections() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

absl::Status RunOnce(const LoadRunner& runner) {
  const Options& options = runner.options();
  MILLRACE_ASSIGN_OR_RETURN(RunResult run, runner.Run(options));
  const Result result = Summarize(options, run);
  std::fputs(TextReport(result).c_str(), stdout);
  absl::Status written;  // that one file cannot be written does not lose the other
  if (!options.json_file.empty()) {
    nlohmann::ordered_json json = ToJson(result);
    if (options.save_detailed) AddDetails(run, json);
    written.Update(WriteFile(options.json_file, Dump(json)));
  }
  if (!options.html_file.empty()) {
    written.Update(WriteFile(options.html_file, HtmlReport(result)));
  }
  MILLRACE_RETURN_IF_ERROR(written);
  return result.completed > 0 ? absl::OkStatus()
                              : absl::UnavailableError("no request was completed");
}

absl::Status Run(const Options& options) {
  if (options.command == LoadCommand::kCompare) return RunCompare(options);
  AllowManyConnections();
  TakeSignals();
  MILLRACE_ASSIGN_OR_RETURN(const std::unique_ptr<LoadRunner> runner,
                            LoadRunner::Prepare(options, stop));
  return options.command == LoadCommand::kSweep ? RunSweep(*runner) : RunOnce(*runner);
}

int Main(const std::vector<std::string>& arguments) {
  const absl::StatusOr<Options> options = ParseOptions(arguments);
  if (options.ok() && !options->print.empty()) {
    std::fputs(options->print.c_str(), stdout);
    return EXIT_SUCCESS;
  }
  const absl::Status status = options.ok() ? Run(*options) : options.status();
  if (status.ok()) return EXIT_SUCCESS;
  std::fprintf(stderr, "millrace-loadtest: %s\n", std::string(status.message()).c_str());
  return EXIT_FAILURE;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  // Names are resolved as over HTTP. gRPC's own resolver also leaks what it has resolved.
  setenv("GRPC_DNS_RESOLVER", "native", /*overwrite=*/0);
  return millrace::Main({argv + 1, argv + argc});
}
