#include "loadtest/result.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/strings.h"
#include "loadtest/histogram.h"

namespace millrace {
namespace {

constexpr size_t kMostErrors = 20;
constexpr size_t kMostSamples = 3;
constexpr size_t kLongestText = 600;
constexpr int64_t kMostPoints = 240;  // of a timeline
// From here on the load generator may distort what it measures.
constexpr double kLateMs = 10;
constexpr double kBusyShare = 0.85;  // of a thread's time

Distribution Describe(std::vector<double> seconds, const Options& options) {
  std::sort(seconds.begin(), seconds.end());
  Distribution described;
  if (seconds.empty()) {
    for (const double percent : options.percentiles) described.percentiles.emplace_back(percent, 0);
    return described;
  }
  double sum = 0;
  for (const double value : seconds) sum += value;
  const double mean = sum / static_cast<double>(seconds.size());
  double squares = 0;
  for (const double value : seconds) squares += (value - mean) * (value - mean);
  described.mean = mean * 1e3;
  described.deviation = std::sqrt(squares / static_cast<double>(seconds.size())) * 1e3;
  described.median = SortedQuantile(seconds, 0.5) * 1e3;
  for (const double percent : options.percentiles) {
    described.percentiles.emplace_back(percent, SortedQuantile(seconds, percent / 100) * 1e3);
  }
  for (const double share : PlotShares()) {
    described.curve.push_back(SortedQuantile(seconds, share) * 1e3);
  }
  return described;
}

Distribution Describe(const Histogram& histogram, const Options& options) {
  Distribution described{.mean = histogram.Mean() * 1e3,
                         .median = histogram.Quantile(0.5) * 1e3,
                         .deviation = histogram.Deviation() * 1e3};
  for (const double percent : options.percentiles) {
    described.percentiles.emplace_back(percent, histogram.Quantile(percent / 100) * 1e3);
  }
  if (histogram.weight() == 0) return described;
  for (const double value : histogram.Quantiles(PlotShares())) {
    described.curve.push_back(value * 1e3);
  }
  return described;
}

bool IsGood(const Goals& goals, const RequestRecord& record) {
  const auto keeps = [](std::optional<double> bound, double seconds) {
    return !bound || seconds * 1e3 <= *bound;
  };
  return keeps(goals.ttft, record.ttft()) && keeps(goals.tpot, record.tpot()) &&
         keeps(goals.e2el, record.latency());
}

// Counts outcomes, and collects the latencies of completed requests.
void AddRecords(const Options& options, const std::vector<RequestRecord>& records, Result& result) {
  std::vector<double> ttft, tpot, e2el, queue;
  int64_t good = 0;
  int64_t expected = 0;  // requests that the client wanted whole
  for (const RequestRecord& record : records) {
    expected += record.outcome == Outcome::kCancelled || record.slow ? 0 : 1;
    result.failed += record.outcome == Outcome::kFailed ? 1 : 0;
    result.cancelled += record.outcome == Outcome::kCancelled ? 1 : 0;
    result.past_deadline += record.outcome == Outcome::kDeadline ? 1 : 0;
    result.unfinished += record.outcome == Outcome::kUnfinished ? 1 : 0;
    if (record.outcome != Outcome::kCompleted) continue;
    ++result.completed;
    result.uncounted += record.output_tokens > 0 && !record.counted ? 1 : 0;
    result.input_tokens += record.prompt_tokens;
    result.cached_tokens += record.cached_tokens;
    result.output_tokens += record.output_tokens;
    if (record.slow) continue;
    good += IsGood(options.goals, record) ? 1 : 0;
    queue.push_back(record.sent - record.intended);
    e2el.push_back(record.latency());
    if (record.first == 0) continue;
    ttft.push_back(record.ttft());
    if (record.output_tokens > 1) tpot.push_back(record.tpot());
  }
  result.ttft = Describe(std::move(ttft), options);
  result.tpot = Describe(std::move(tpot), options);
  result.e2el = Describe(std::move(e2el), options);
  result.queue = Describe(std::move(queue), options);
  if (options.goals.empty()) return;
  result.goodput = static_cast<double>(good) / std::max(result.duration, 1e-9);
  result.attainment = static_cast<double>(good) / std::max(1.0, static_cast<double>(expected));
}

// Returns the most requests that ran at once.
int64_t PeakConcurrency(const std::vector<RequestRecord>& records) {
  std::vector<std::pair<double, int>> changes;
  for (const RequestRecord& record : records) {
    if (record.end <= record.sent) continue;
    changes.emplace_back(record.sent, 1);
    changes.emplace_back(record.end, -1);
  }
  std::sort(changes.begin(), changes.end());
  int64_t running = 0;
  int64_t peak = 0;
  for (const auto& [time, change] : changes) {
    running += change;
    peak = std::max(peak, running);
  }
  return peak;
}

void AddTimeline(RunResult& run, Result& result) {
  std::vector<TimelineSecond>& seconds = run.measurements.seconds;
  for (const TimelineSecond& second : seconds) {
    result.peak_output_throughput = std::max(result.peak_output_throughput, second.tokens);
  }
  const auto count = static_cast<int64_t>(seconds.size());
  const int64_t width = std::max<int64_t>(1, (count + kMostPoints - 1) / kMostPoints);
  std::vector<std::vector<double>> ttfts(static_cast<size_t>((count + width - 1) / width));
  for (const RequestRecord& record : run.measurements.records) {
    if (record.first == 0 || record.slow) continue;
    const auto point = static_cast<size_t>(record.first / static_cast<double>(width));
    if (point < ttfts.size()) ttfts[point].push_back(record.ttft());
  }
  for (size_t i = 0; i < ttfts.size(); ++i) {
    const auto first = static_cast<int64_t>(i) * width;
    TimelinePoint point{.time = static_cast<double>(first)};
    Histogram gaps;
    for (int64_t second = first; second < std::min(first + width, count); ++second) {
      const TimelineSecond& of = seconds[static_cast<size_t>(second)];
      point.tokens_per_second += of.tokens / static_cast<double>(width);
      point.requests_per_second += static_cast<double>(of.completed) / static_cast<double>(width);
      gaps.Merge(of.gaps);
    }
    std::sort(ttfts[i].begin(), ttfts[i].end());
    point.has_ttft = !ttfts[i].empty();
    point.ttft_median = SortedQuantile(ttfts[i], 0.5) * 1e3;
    point.ttft_p99 = SortedQuantile(ttfts[i], 0.99) * 1e3;
    point.has_itl = gaps.weight() > 0;
    point.itl_median = gaps.Quantile(0.5) * 1e3;
    point.itl_p99 = gaps.Quantile(0.99) * 1e3;
    result.timeline.push_back(point);
  }
}

void AddTexts(const std::vector<RequestRecord>& records, Result& result) {
  std::map<std::string, int64_t> errors;
  for (const RequestRecord& record : records) {
    if (record.outcome == Outcome::kFailed) ++errors[record.error.substr(0, kLongestText)];
    if (!record.text.empty() && result.samples.size() < kMostSamples) {
      result.samples.push_back(record.text.substr(0, kLongestText));
    }
  }
  result.errors.assign(errors.begin(), errors.end());
  std::stable_sort(result.errors.begin(), result.errors.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  if (result.errors.size() > kMostErrors) result.errors.resize(kMostErrors);
}

void AddGenerator(const Options& options, const RunResult& run, Result& result) {
  result.events = run.events;
  result.threads = run.threads;
  result.cpu_seconds = run.cpu_seconds;
  result.lag_p99 = run.lag.Quantile(0.99) * 1e3;
  if (result.lag_p99 > kLateMs) {
    result.warnings.push_back(absl::StrFormat(
        "this program sent 1 %% of its requests more than %.0f ms late by itself: give it more "
        "--threads, or a machine of its own",
        result.lag_p99));
  }
  const double busy = run.cpu_seconds / std::max(run.duration, 1e-9) / std::max(run.threads, 1);
  if (busy > kBusyShare && run.duration > 1) {
    result.warnings.push_back(absl::StrFormat(
        "this program used %.0f %% of its threads' time, so the figures may be its own limit: give "
        "it more --threads",
        busy * 100));
  }
  const bool repeats = options.prefix_len > 0 || options.turns.most() > 1 ||
                       !options.dataset.empty() || options.replays();
  if (!repeats && result.cached_tokens * 20 > result.input_tokens) {
    result.warnings.push_back(absl::StrFormat(
        "%.0f %% of the prompts' tokens came from the server's cache, perhaps of a run before: "
        "another --seed gives other prompts",
        static_cast<double>(result.cached_tokens) / static_cast<double>(result.input_tokens) *
            100));
  }
  if (result.uncounted > 0) {
    result.warnings.push_back(
        StrCat("tokens were not counted by the server: an event counts as one (in ",
               result.uncounted, " of ", result.completed, " requests)"));
  }
}

std::string LoadInWords(const Options& options) {
  const std::string bound =
      options.concurrency > 0 ? StrCat(", at most ", options.concurrency, " at once") : "";
  if (!options.open_loop()) {
    return StrCat(options.replays() ? "replay, " : "closed loop, ",
                  std::max<int64_t>(1, options.concurrency),
                  options.replays() ? " sessions at once" : " at once");
  }
  switch (options.arrival.value_or(ArrivalKind::kPoisson)) {
    case ArrivalKind::kTrace:
      return StrCat("recorded arrivals", bound);
    case ArrivalKind::kConstant:
      return StrCat("open loop, ", *options.rate, " req/s, even", bound);
    case ArrivalKind::kBurst:
      return StrCat("open loop, ", *options.rate, " req/s in bursts of ", options.burst_size,
                    bound);
    case ArrivalKind::kRamp:
      return StrCat("open loop, ", options.ramp_start, " to ", *options.rate, " req/s", bound);
    case ArrivalKind::kPoisson:
      break;
  }
  return StrCat("open loop, ", *options.rate, " req/s, Poisson", bound);
}

// Returns the local time that it is.
std::string Now(const std::string& format) {
  return absl::FormatTime(format, absl::Now(), absl::LocalTimeZone());
}

}  // namespace

Result Summarize(const Options& options, RunResult& run) {
  Result result;
  result.label = options.label;
  result.date = Now("%Y%m%d-%H%M%S");
  result.time = Now("%Y-%m-%d %H:%M:%S %Ez");
  result.model = options.model;
  result.protocol = options.protocol == Protocol::kHttp ? "http" : "grpc";
  result.url = options.url;
  result.load = LoadInWords(options);
  if (options.open_loop()) result.rate = options.rate;
  if (options.concurrency > 0 || !options.open_loop()) {
    result.concurrency = std::max<int64_t>(1, options.concurrency);
  }
  result.goals = options.goals.ToString();
  result.generator_facts = GeneratorFacts(options);
  result.server_facts = run.server;
  result.duration = run.duration;
  // The threads' records come one after another; the order of sending is the one to read.
  std::stable_sort(run.measurements.records.begin(), run.measurements.records.end(),
                   [](const auto& a, const auto& b) { return a.intended < b.intended; });
  const std::vector<RequestRecord>& records = run.measurements.records;
  AddRecords(options, records, result);
  const double seconds = std::max(result.duration, 1e-9);
  result.request_throughput = static_cast<double>(result.completed) / seconds;
  result.output_throughput = static_cast<double>(result.output_tokens) / seconds;
  result.total_throughput =
      static_cast<double>(result.input_tokens + result.output_tokens) / seconds;
  result.peak_concurrency = PeakConcurrency(records);
  result.itl = Describe(run.measurements.token_gaps, options);
  result.pause = Describe(run.measurements.pauses, options);
  result.turns = SumByTurn(records, options.replays());
  result.sessions = run.measurements.sessions;
  result.prompt_sources = run.prompt_sources;
  AddTimeline(run, result);
  AddTexts(records, result);
  AddGenerator(options, run, result);
  return result;
}

}  // namespace millrace
