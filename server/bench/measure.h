// Measures one point of the benchmark.
#ifndef MILLRACE_SERVER_BENCH_MEASURE_H_
#define MILLRACE_SERVER_BENCH_MEASURE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "config/settings.h"
#include "server/bench/machine.h"
#include "server/bench/offline_engine.h"

namespace millrace {

// The figures of one point and one number of tokens to generate.
struct LengthFigures {
  int32_t output;
  std::vector<double> wall_ms;  // of each run, in their order
  double median_ms;
  int32_t steps = 0;                 // of a run
  std::vector<MixtureUse> mixtures;  // with what the steps of all timed runs touched
};

// The experts that the steps of a model with mixtures of experts read.
struct ExpertFigures {
  // For each mixture: the experts that a step touches, those that get a token. Means over the steps
  // between the two lengths, as step_ms is, or over all steps of the runs of one length.
  std::vector<double> touched;
  double experts;       // of a mixture, the mean
  double expert_bytes;  // a step: of the touched experts' weights
  // All bytes that a decoding step must read or write, with those above. Known only where there is
  // a step_ms, and to devices that run kernels.
  std::optional<double> step_bytes;
  // The device's read rate in bytes a second, measured right after the point.
  std::optional<double> read_rate;
  // The share of the read rate that step_bytes over the time of a step are.
  std::optional<double> share;
};

struct PointFigures {
  BenchPoint point;
  std::vector<LengthFigures> lengths;  // one or two, the shorter first

  // (T(b) - T(a)) / (b - a) of the two lengths' medians.
  std::optional<double> step_ms;
  // Generated tokens a second: of a step where there is one, else of the whole run; not of a
  // prefill.
  std::optional<double> output_tokens_per_s;
  // From a run that generates one token for each prompt.
  std::optional<double> prompt_tokens_per_s;

  std::optional<ExpertFigures> experts;  // nothing: the model has no mixture, or none is counted

  std::optional<GpuReading> before;
  std::optional<GpuReading> after;
  std::vector<std::string> void_because;  // not empty: the figures are not to be quoted
};

// Returns InvalidArgument, with both numbers, if the executor was loaded for less than the point
// needs, so that its sequences could not all run at the same time.
absl::Status CheckPoint(const BenchPoint& point, const ModelInfo& model);

using PromptSource = std::mt19937_64;

// Prompts of tokens drawn at random: no two begin alike, but by chance.
std::vector<std::vector<Token>> DrawPrompts(const BenchPoint& point, int32_t vocab_size,
                                            PromptSource& source);

struct MeasureOptions {
  int32_t reps;
  float temperature;
  bool read_gpu;  // before and after
  // Called before each run, of which `done` of `all` are over.
  std::function<void(int done, int all)> progress = [](int, int) {};
};

// Measures a point: one run of each length that is not timed, then `reps` timed ones of each. The
// point has passed CheckPoint.
absl::StatusOr<PointFigures> MeasurePoint(OfflineEngine& engine, const BenchPoint& point,
                                          const MeasureOptions& options, PromptSource& source);

// Returns, for MeasurePoint, what the lengths' mixtures say of a step. `figures` are complete but
// for that.
std::optional<ExpertFigures> SummarizeExperts(const OfflineEngine& engine,
                                              const PointFigures& figures);

// Returns, for MeasurePoint, why the difference of two runs is not the time of steps of the whole
// batch; empty if it is.
std::string WhyNoStep(const BenchPoint& point, const OfflineRun& shorter, const OfflineRun& longer);

double Median(std::vector<double> values);  // not empty

}  // namespace millrace

#endif  // MILLRACE_SERVER_BENCH_MEASURE_H_
