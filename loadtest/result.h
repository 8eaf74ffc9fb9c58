// A run's figures, as they are written, read and shown.
#ifndef MILLRACE_LOADTEST_RESULT_H_
#define MILLRACE_LOADTEST_RESULT_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "loadtest/meter.h"
#include "loadtest/options.h"
#include "loadtest/prompt_sources.h"
#include "loadtest/runner.h"
#include "loadtest/setup.h"
#include "loadtest/turns.h"

namespace millrace {

// A distribution of times, in milliseconds.
struct Distribution {
  double mean = 0;
  double median = 0;
  double deviation = 0;
  std::vector<std::pair<double, double>> percentiles;
  std::vector<double> curve;  // values at PlotShares(); empty of no samples, or if unknown
};

// One of a few seconds of a run.
struct TimelinePoint {
  double time = 0;  // seconds after the start
  double tokens_per_second = 0;
  double requests_per_second = 0;  // completed
  double ttft_median = 0;          // milliseconds; of requests whose first token came then
  double ttft_p99 = 0;
  double itl_median = 0;
  double itl_p99 = 0;
  bool has_ttft = false;
  bool has_itl = false;
};

struct Result {
  std::string label;
  std::string date;  // local, as vllm bench serve has it: "20261130-100512"
  std::string time;  // the same for readers: "2026-11-30 10:05:12 +01:00"
  std::string model;
  std::string protocol;
  std::string url;
  std::string load;  // in words: "closed loop, 64 at once"
  std::optional<double> rate;
  std::optional<int64_t> concurrency;
  std::string goals;

  double duration = 0;
  int64_t completed = 0;
  int64_t failed = 0;
  int64_t cancelled = 0;
  int64_t past_deadline = 0;
  int64_t uncounted = 0;  // completed requests of whose tokens the server said no number
  int64_t unfinished = 0;
  int64_t input_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;
  double request_throughput = 0;
  double output_throughput = 0;
  double total_throughput = 0;
  double peak_output_throughput = 0;
  int64_t peak_concurrency = 0;
  std::optional<double> goodput;     // good requests a second
  std::optional<double> attainment;  // share of good ones among all that should have been answered

  Distribution ttft;
  Distribution tpot;
  Distribution itl;
  Distribution e2el;
  Distribution pause;  // between arrivals
  Distribution queue;  // between a request's due time and when it was sent

  TurnTable turns;  // of sessions with several
  SessionCounts sessions;
  PromptSources prompt_sources;

  std::vector<TimelinePoint> timeline;
  std::vector<std::pair<std::string, int64_t>> errors;  // by message, the most frequent first
  std::vector<std::string> samples;                     // of answers

  Facts generator_facts;
  Facts server_facts;

  // The load generator itself.
  int64_t events = 0;
  int threads = 0;
  double cpu_seconds = 0;
  double lag_p99 = 0;  // milliseconds
  std::vector<std::string> warnings;
};

Result Summarize(const Options& options, RunResult& run);

// Returns the result with the keys of vllm bench serve, and ours under "millrace_loadtest". Texts
// that are not UTF-8 get U+FFFD in place of the bytes.
nlohmann::ordered_json ToJson(const Result& result);
// Adds what --save-detailed does.
void AddDetails(const RunResult& run, nlohmann::ordered_json& json);
std::string Dump(const nlohmann::ordered_json& json);

// Reads a result of ours or of vllm bench serve. Errors name the field.
absl::StatusOr<Result> FromJson(const nlohmann::json& json);

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_RESULT_H_
