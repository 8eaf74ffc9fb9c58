#include "loadtest/runner.h"

#include <sys/resource.h>

#include <algorithm>
#include <boost/system/system_error.hpp>
#include <deque>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "loadtest/files.h"
#include "loadtest/grpc_client.h"
#include "loadtest/progress.h"

namespace millrace {
namespace {

constexpr int64_t kCallsPerConnection = 100;
// Words of the prompts that find out how many tokens a word is: each of RandomWords' words once,
// and three times.
constexpr int64_t kFewWords = kRandomWords;
constexpr int64_t kManyWords = 3 * kRandomWords;

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Returns how many threads a run has: a closed loop has no more than clients.
int ThreadsOf(const Options& options) {
  const int64_t cores = std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, 2);
  const int64_t threads = options.threads > 0 ? options.threads : cores;
  const bool is_bounded = options.concurrency > 0 || !options.open_loop();
  return static_cast<int>(is_bounded ? std::min(threads, std::max<int64_t>(1, options.concurrency))
                                     : threads);
}

int64_t ConnectionsPerThread(const Options& options, int threads) {
  const int64_t wanted =
      options.connections > 0
          ? options.connections
          : std::max<int64_t>(
                4, (options.concurrency + kCallsPerConnection - 1) / kCallsPerConnection);
  return std::max<int64_t>(1, wanted / threads);
}

}  // namespace

absl::StatusOr<std::unique_ptr<LoadRunner>> LoadRunner::Prepare(Options options,
                                                                const std::atomic<bool>& stop) {
  std::unique_ptr<LoadRunner> runner(new LoadRunner(std::move(options), stop));
  MILLRACE_ASSIGN_OR_RETURN(runner->url_, ParseUrl(runner->options_.url));
  MILLRACE_ASSIGN_OR_RETURN(runner->endpoints_, ResolveUrl(runner->url_));
  if (runner->options_.protocol == Protocol::kGrpc) {
    MILLRACE_ASSIGN_OR_RETURN(runner->grpc_, GrpcChannels::Make(runner->options_, runner->url_));
  } else if (runner->url_.has_tls) {
    MILLRACE_ASSIGN_OR_RETURN(runner->http_tls_, HttpTls::Make(runner->options_, runner->url_));
  }
  auto trace = std::make_shared<std::vector<TraceEntry>>();
  if (const std::string& file = runner->options_.trace_file; !file.empty()) {
    MILLRACE_ASSIGN_OR_RETURN(const std::string text, ReadFile(file));
    absl::StatusOr<std::vector<TraceEntry>> entries = ParseTrace(text);
    if (!entries.ok()) return Annotate(entries.status(), file);
    *trace = *std::move(entries);
  }
  runner->trace_ = std::move(trace);
  MILLRACE_RETURN_IF_ERROR(runner->ReadSessions());
  MILLRACE_RETURN_IF_ERROR(Workload::Make(runner->options_, *runner->trace_).status());
  if (runner->options_.model.empty()) MILLRACE_RETURN_IF_ERROR(runner->FindModel());
  const Options& written = runner->options_;
  if (!written.json_file.empty() || !written.html_file.empty()) runner->FindServerFacts();
  MILLRACE_RETURN_IF_ERROR(runner->Calibrate());
  return runner;
}

absl::Status LoadRunner::ReadSessions() {
  if (!options_.replays() || options_.files.empty()) return absl::OkStatus();
  const std::string& file = options_.files.front();
  MILLRACE_ASSIGN_OR_RETURN(const std::string text, ReadFile(file));
  absl::StatusOr<SessionTrace> sessions = ParseSessionTrace(text);
  if (!sessions.ok()) return Annotate(sessions.status(), file);
  sessions_ = std::make_shared<const SessionTrace>(*std::move(sessions));
  const auto all = static_cast<int64_t>(sessions_->roots.size());
  options_.num_prompts = options_.num_prompts > 0 ? std::min(options_.num_prompts, all) : all;
  return absl::OkStatus();
}

absl::Status LoadRunner::FindModel() {
  const auto annotated = [](const absl::Status& status) {
    return Annotate(status, "cannot ask for the model's name (--model says it)");
  };
  if (options_.protocol == Protocol::kGrpc) {
    absl::StatusOr<std::string> name = FirstGrpcModel(options_, *grpc_);
    if (!name.ok()) return annotated(name.status());
    options_.model = *std::move(name);
    return absl::OkStatus();
  }
  const absl::StatusOr<std::string> body =
      HttpGet(options_, url_, endpoints_, http_tls_.get(), "/v1/models");
  if (!body.ok()) return annotated(body.status());
  const nlohmann::json list = nlohmann::json::parse(*body, nullptr, false);
  const auto data = list.is_object() ? list.find("data") : list.end();
  if (!list.is_object() || data == list.end() || !data->is_array() || data->empty() ||
      !data->front().is_object() || !data->front().contains("id") ||
      !data->front()["id"].is_string()) {
    return annotated(absl::InternalError("/v1/models has no data[0].id"));
  }
  options_.model = data->front()["id"].get<std::string>();
  return absl::OkStatus();
}

void LoadRunner::FindServerFacts() {
  if (options_.protocol == Protocol::kGrpc) {
    const absl::StatusOr<std::string> version = GrpcServerVersion(options_, *grpc_);
    if (version.ok()) server_facts_ = {{"version", *version}};
  } else {
    const auto body = [this](const std::string& path) {
      return HttpGet(options_, url_, endpoints_, http_tls_.get(), path).value_or("");
    };
    server_facts_ = ServerFacts(body("/version"), body("/v1/models"), options_.model);
  }
  for (const auto& fact : options_.metadata) server_facts_.push_back(fact);
}

absl::StatusOr<double> LoadRunner::PromptTokens(int64_t words) const {
  Options options = options_;
  options.command = LoadCommand::kRun;
  options.concurrency = options.num_prompts = 1;
  options.rate.reset();
  options.arrival.reset();
  options.duration = options.cancel_ratio = options.slow_ratio = 0;
  options.deadline = 60;
  options.prefix_len = 0;
  options.turns = Lengths(1);
  options.output_len = Lengths(1);
  options.input_len = Lengths(words);
  options.usage = UsageReports::kFinal;
  // Another seed than the run's, so that no prompt is in the server's cache before its time.
  options.seed = ~options.seed - static_cast<uint64_t>(words);
  MILLRACE_ASSIGN_OR_RETURN(const Workload workload, Workload::Make(options, {}));
  MILLRACE_ASSIGN_OR_RETURN(const RunResult result, RunWith(options, workload, false));
  if (stop_ || result.measurements.records.empty()) return absl::CancelledError("interrupted");
  const RequestRecord& record = result.measurements.records.front();
  if (record.outcome == Outcome::kDeadline) {
    return absl::DeadlineExceededError("a first request took longer than 60 s");
  }
  if (record.outcome != Outcome::kCompleted) {
    return absl::UnavailableError(StrCat("a first request failed: ", Printable(record.error, 300)));
  }
  return static_cast<double>(record.prompt_tokens);
}

// Two prompts show how many tokens a word is and how many each prompt has besides (a chat
// template's). The first request also finds out whether the server answers at all.
absl::Status LoadRunner::Calibrate() {
  if (!options_.calibrate || options_.vocab_size > 0 || !options_.dataset.empty() || sessions_) {
    return absl::OkStatus();
  }
  MILLRACE_ASSIGN_OR_RETURN(const double few, PromptTokens(kFewWords));
  if (few <= 0) return absl::OkStatus();  // the server counts no tokens
  MILLRACE_ASSIGN_OR_RETURN(const double many, PromptTokens(kManyWords));
  const double per_word = (many - few) / static_cast<double>(kManyWords - kFewWords);
  if (per_word < 0.2) return absl::OkStatus();
  scale_ = {.base = std::max(0.0, few - per_word * static_cast<double>(kFewWords)),
            .per_word = per_word};
  return absl::OkStatus();
}

absl::StatusOr<RunResult> LoadRunner::Run(const Options& options) const {
  if (options.num_warmups > 0) {
    Options warmup = options;
    warmup.command = LoadCommand::kRun;
    warmup.num_prompts = options.num_warmups;
    warmup.rate.reset();
    warmup.arrival.reset();
    warmup.duration = 0;
    warmup.concurrency = std::min(std::max<int64_t>(1, options.concurrency), options.num_warmups);
    warmup.seed = ~options.seed;
    MILLRACE_ASSIGN_OR_RETURN(Workload workload, Workload::Make(warmup, {}));
    workload.set_scale(scale_);
    MILLRACE_RETURN_IF_ERROR(RunWith(warmup, workload, false).status());
  }
  MILLRACE_ASSIGN_OR_RETURN(Workload workload, Workload::Make(options, *trace_, sessions_));
  workload.set_scale(scale_);
  if (!options.save_trace.empty()) {
    MILLRACE_RETURN_IF_ERROR(
        WriteFileInParts(options.save_trace, static_cast<uint64_t>(options.num_prompts),
                         [&](uint64_t index) { return workload.GeneratedTrace(index); }));
  }
  if (!options.replays()) return RunWith(options, workload, !options.quiet);
  const PromptSources before = CountPromptSources();
  MILLRACE_ASSIGN_OR_RETURN(RunResult result, RunWith(options, workload, !options.quiet));
  result.prompt_sources = CountedSince(before, CountPromptSources());
  return result;
}

PromptSources LoadRunner::CountPromptSources() const {
  return ParsePromptSources(
      HttpGet(options_, url_, endpoints_, http_tls_.get(), "/metrics").value_or(""));
}

absl::StatusOr<RunResult> LoadRunner::RunWith(const Options& options, const Workload& workload,
                                              bool show) const {
  RunShared shared{.options = options,
                   .workload = workload,
                   .trace = trace_,
                   .stop = stop_,
                   .threads = ThreadsOf(options),
                   .start = Clock::Real().Now()};
  std::deque<ThreadProgress> progress(static_cast<size_t>(shared.threads));
  std::deque<Driver> drivers;
  for (int i = 0; i < shared.threads; ++i) {
    drivers.emplace_back(shared, i, progress[static_cast<size_t>(i)]);
  }
  // All are made before the first one takes the descriptors of its connections.
  std::deque<HttpLoadClient> http;
  std::deque<GrpcClient> grpc;
  std::vector<std::function<void()>> runs;
  const auto use = [&](Driver& driver, auto& client) {
    driver.set_client(client);
    runs.emplace_back([&client] { client.Run(); });
  };
  try {
    for (Driver& driver : drivers) {
      if (options.protocol == Protocol::kHttp) {
        use(driver, http.emplace_back(url_, endpoints_, http_tls_.get(), driver));
      } else {
        use(driver,
            grpc.emplace_back(*grpc_, ConnectionsPerThread(options, shared.threads), driver));
      }
    }
  } catch (const boost::system::system_error& error) {  // no descriptor is left
    return absl::ResourceExhaustedError(StrCat("cannot make a client: ", error.what()));
  }
  const double cpu_before = CpuSeconds();
  {
    std::unique_ptr<ProgressDisplay> display;
    if (show) display = std::make_unique<ProgressDisplay>(progress);
    std::vector<std::jthread> threads;
    for (const std::function<void()>& run : runs) threads.emplace_back(run);
  }
  RunResult result{
      .cpu_seconds = CpuSeconds() - cpu_before, .threads = shared.threads, .server = server_facts_};
  for (Driver& driver : drivers) {
    result.measurements.Merge(std::move(driver.measurements()));
    result.lag.Merge(driver.lag());
  }
  for (const RequestRecord& record : result.measurements.records) {
    result.duration = std::max(result.duration, record.end);
  }
  result.events = ProgressTotals::Of(progress).events;
  return result;
}

}  // namespace millrace
