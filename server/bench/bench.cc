#include "server/bench/bench.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "config/help.h"
#include "engine/metrics/process_metrics.h"
#include "executors/factory.h"
#include "server/bench/measure.h"
#include "server/bench/offline_engine.h"
#include "server/bench/peer_figures.h"
#include "server/bench/report.h"
#include "server/bench/step_trace.h"
#include "server/device_spec.h"
#include "server/model_location.h"

namespace millrace {
namespace {

constexpr uint64_t kPromptSeed = 1;

std::vector<BenchPoint> Points(const Settings& settings) {
  if (!settings.bench_points.empty()) return settings.bench_points;
  std::vector<BenchPoint> points;
  for (const int32_t batch : settings.bench_batch_sizes) {
    points.push_back({batch, settings.bench_input_len, settings.bench_output_lens});
  }
  return points;
}

void Print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

// Shows on a terminal how far a point is, on a line that the point's own then takes. A terminal on
// stdout alone: what is piped elsewhere has the table and nothing more.
class ProgressLine {
 public:
  void Show(const BenchPoint& point, int done, int all) const {
    if (!on_) return;
    Print(absl::StrCat("\r\033[Kbatch ", point.batch, ", prompt ", point.input, ": run ", done + 1,
                       " of ", all));
  }
  void Clear() const {
    if (on_) Print("\r\033[K");
  }

 private:
  const bool on_ = isatty(STDOUT_FILENO) != 0;
};

// Opened before anything is measured: a path that cannot be written should not cost the figures.
class JsonFile {
 public:
  explicit JsonFile(const std::string& path) : path_(path) {
    if (!path_.empty()) file_.open(path_);
  }
  absl::Status status() const {
    if (file_) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("json: cannot write ", path_));
  }
  absl::Status Write(const nlohmann::ordered_json& json) {
    if (path_.empty()) return absl::OkStatus();
    file_ << json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << "\n";
    file_.close();
    return status();
  }

 private:
  const std::string path_;
  std::ofstream file_;
};

// The first prompt is as long as the first point's.
absl::StatusOr<StartFigures> TimeFirstToken(OfflineEngine& engine, const BenchPoint& point,
                                            StartFigures start, PromptSource& source) {
  MILLRACE_ASSIGN_OR_RETURN(
      const OfflineRun run,
      engine.Generate({.prompts = DrawPrompts({1, point.input, {1}},
                                              engine.info().limits.vocab_size, source)}));
  start.total_s = SecondsSinceProcessStart().value_or(0);
  start.first_request_s = ToSeconds(run.wall);
  return start;
}

// Returns a trace of each rank.
absl::StatusOr<std::vector<StepTrace>> TracePoint(OfflineEngine& engine,
                                                  const PointFigures& figures,
                                                  const DeviceSpec& device, float temperature,
                                                  PromptSource& source) {
  const BenchPoint& point = figures.point;
  MILLRACE_ASSIGN_OR_RETURN(std::unique_ptr<DeviceTrace> trace, StartTrace(device));
  MILLRACE_ASSIGN_OR_RETURN(
      const OfflineRun run,
      engine.Generate({.prompts = DrawPrompts(point, engine.info().limits.vocab_size, source),
                       .new_tokens = point.outputs.back(),
                       .temperature = temperature}));
  MILLRACE_ASSIGN_OR_RETURN(std::vector<DeviceOperation> operations, trace->Stop());
  const int64_t middle = point.input + point.outputs.back() / 2;  // of the traced steps
  const std::vector<double> touched =
      figures.experts.has_value() ? figures.experts->touched : std::vector<double>();
  return SummarizeRanks(std::move(operations), run,
                        engine.DecodeBytes(point.batch, point.batch * middle, touched));
}

}  // namespace

absl::Status RunBench(const Settings& settings, const std::string& given) {
  const DeviceSpec device = MakeDeviceSpec(settings);
  const std::vector<BenchPoint> points = Points(settings);
  JsonFile json(settings.bench_json);
  MILLRACE_RETURN_IF_ERROR(json.status());
  std::optional<PeerFigures> peer;
  if (!settings.bench_peer.empty()) {
    MILLRACE_ASSIGN_OR_RETURN(peer, PeerFigures::Read(settings.bench_peer));
  }
  // A trace that cannot be taken is better refused now than after minutes of measuring.
  if (settings.bench_trace) MILLRACE_RETURN_IF_ERROR(CanTrace(device));

  StartFigures start{.before_load_s = SecondsSinceProcessStart().value_or(0)};
  const SteadyTime begin = Clock::Real().Now();
  MILLRACE_ASSIGN_OR_RETURN(const std::string path, ModelPath(settings));
  MILLRACE_ASSIGN_OR_RETURN(std::unique_ptr<Executor> executor,
                            LoadExecutor(MakeModelSpec(settings, path), device));
  start.load_s = ToSeconds(Clock::Real().Now() - begin);
  if (executor->info().limits.embedding_size > 0) {
    return absl::UnimplementedError(
        "model: it makes embeddings; allowed for bench: models that generate");
  }
  for (const BenchPoint& point : points) {
    MILLRACE_RETURN_IF_ERROR(CheckPoint(point, executor->info()));
  }
  MILLRACE_ASSIGN_OR_RETURN(std::unique_ptr<OfflineEngine> engine,
                            OfflineEngine::Create(std::move(executor), settings.prefix_caching));
  PromptSource source(kPromptSeed);
  MILLRACE_ASSIGN_OR_RETURN(start, TimeFirstToken(*engine, points.front(), start, source));

  const bool on_gpu = settings.device == Device::kCuda;
  const BenchContext context = {.version = std::string(Version()),
                                .settings = given,
                                .model_name = ModelName(settings, path),
                                .model = engine->info(),
                                .machine = ReadMachine(),
                                .gpu = on_gpu ? ReadGpu() : std::nullopt,
                                .start = start};
  Print(ContextText(context) + "\n" + PointsHead(on_gpu, peer ? &*peer : nullptr));
  const ProgressLine progress;
  MeasureOptions options = {.reps = settings.bench_reps,
                            .temperature = static_cast<float>(settings.temperature.value_or(0)),
                            .read_gpu = on_gpu};
  std::vector<MeasuredPoint> measured;
  int num_void = 0;
  for (const BenchPoint& point : points) {
    options.progress = [&](int done, int all) { progress.Show(point, done, all); };
    const absl::StatusOr<PointFigures> measured_point =
        MeasurePoint(*engine, point, options, source);
    progress.Clear();
    MILLRACE_ASSIGN_OR_RETURN(PointFigures figures, measured_point);
    Print(PointLine(figures, on_gpu, peer ? &*peer : nullptr));
    if (!figures.void_because.empty()) ++num_void;
    measured.push_back({std::move(figures), {}});
  }
  Print(ExpertTable(measured));
  for (MeasuredPoint& point : measured) {
    if (!settings.bench_trace) break;
    MILLRACE_ASSIGN_OR_RETURN(
        point.traces, TracePoint(*engine, point.figures, device, options.temperature, source));
    Print("\n" + TraceTable(point.figures.point, point.traces.front()) + RankTable(point.traces));
  }
  MILLRACE_RETURN_IF_ERROR(json.Write(ToJson(context, measured)));
  if (num_void == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(num_void, " of ", measured.size(), " points are void"));
}

}  // namespace millrace
