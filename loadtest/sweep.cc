#include "loadtest/sweep.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/status.h"
#include "base/strings.h"
#include "loadtest/files.h"
#include "loadtest/html_report.h"
#include "loadtest/text_report.h"

namespace millrace {
namespace {

constexpr double kCloseEnough = 1.05;
constexpr double kLowestRate = 0.01;

class Sweep {
 public:
  explicit Sweep(const LoadRunner& runner) : runner_(runner) {}

  // Writes the results, also those that were measured until an interruption.
  absl::Status Run() {
    absl::Status status = RunAll();
    if (results_.empty() || (!status.ok() && !absl::IsCancelled(status))) return status;
    MILLRACE_RETURN_IF_ERROR(Write());
    return status;
  }

 private:
  absl::Status RunAll() {
    const Options& options = runner_.options();
    for (const double rate : options.rates) MILLRACE_RETURN_IF_ERROR(RunRate(rate).status());
    for (const int64_t concurrency : options.concurrencies) {
      Options with = options;
      with.concurrency = concurrency;
      MILLRACE_RETURN_IF_ERROR(RunOnce(with));
    }
    if (options.rates.empty() && options.concurrencies.empty()) {
      const auto holds = [this](double rate) { return RunRate(rate); };
      MILLRACE_RETURN_IF_ERROR(
          FindHighestRate(options.rate.value_or(1), options.max_rate, options.steps, holds)
              .status());
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> RunRate(double rate) {
    Options with = runner_.options();
    with.rate = rate;
    MILLRACE_RETURN_IF_ERROR(RunOnce(with));
    return Holds(results_.back(), with.attainment);
  }

  absl::Status RunOnce(Options options) {
    // Each run has other prompts, so that none is answered from the cache of the run before.
    options.seed += results_.size() * 1'000'003;
    MILLRACE_ASSIGN_OR_RETURN(RunResult run, runner_.Run(options));
    results_.push_back(Summarize(options, run));
    const std::string table = SweepTable({results_.back()});
    const size_t end_of_head = table.find('\n') + 1;
    std::fputs(results_.size() == 1 ? table.c_str() : table.c_str() + end_of_head, stdout);
    std::fflush(stdout);
    if (runner_.stopped()) return absl::CancelledError("interrupted");
    return absl::OkStatus();
  }

  // Returns the run with the highest load that holds, -1 if none does or there are no goals.
  int Best() const {
    int best = -1;
    const double attainment = runner_.options().attainment;
    const auto load = [&](int i) {
      const Result& result = results_[static_cast<size_t>(i)];
      return result.rate.value_or(static_cast<double>(result.concurrency.value_or(0)));
    };
    for (int i = 0; i < static_cast<int>(results_.size()); ++i) {
      const bool holds = Holds(results_[static_cast<size_t>(i)], attainment);
      if (holds && (best < 0 || load(i) > load(best))) best = i;
    }
    return best;
  }

  absl::Status Write() const {
    const Options& options = runner_.options();
    const int best = Best();
    if (!options.goals.empty()) PrintBest(best);
    if (!options.json_file.empty()) {
      nlohmann::ordered_json json = {
          {"goals", options.goals.ToString()},
          {"attainment", options.attainment},
          {"best", best < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(best)}};
      for (const Result& result : results_) json["runs"].push_back(ToJson(result));
      MILLRACE_RETURN_IF_ERROR(WriteFile(options.json_file, Dump(json)));
    }
    if (options.html_file.empty()) return absl::OkStatus();
    return WriteFile(options.html_file, HtmlSweepReport(results_, best));
  }

  void PrintBest(int best) const {
    if (best < 0) {
      std::printf("\nNo load holds %s.\n", runner_.options().goals.ToString().c_str());
      return;
    }
    const Result& result = results_[static_cast<size_t>(best)];
    const std::string load = result.rate ? Figure(*result.rate) + " requests a second"
                                         : StrCat(*result.concurrency, " requests at once");
    std::printf("\nHighest load that holds %s: %s, %s output tokens a second.\n",
                result.goals.c_str(), load.c_str(), Figure(result.output_throughput).c_str());
  }

  const LoadRunner& runner_;
  std::vector<Result> results_;
};

}  // namespace

bool Holds(const Result& result, double attainment) {
  return result.completed > 0 && result.attainment && *result.attainment >= attainment;
}

absl::StatusOr<std::optional<double>> FindHighestRate(
    double start, double most, int64_t steps,
    const std::function<absl::StatusOr<bool>(double)>& holds) {
  std::optional<double> low;   // holds
  std::optional<double> high;  // does not
  double rate = std::min(start, most);
  for (int64_t step = 0; step < steps; ++step) {
    MILLRACE_ASSIGN_OR_RETURN(const bool is_held, holds(rate));
    (is_held ? low : high) = rate;
    if (low && *low >= most) break;
    if (low && high && *high / *low <= kCloseEnough) break;
    if (low && high) {
      rate = std::sqrt(*low * *high);
    } else {
      rate = low ? std::min(*low * 2, most) : *high / 2;
    }
    if (rate < kLowestRate) break;
  }
  return low;
}

absl::Status RunSweep(const LoadRunner& runner) { return Sweep(runner).Run(); }

}  // namespace millrace
