// Measures one point of the benchmark.
#ifndef MILLRACE_SERVER_BENCH_MEASURE_H_
#define MILLRACE_SERVER_BENCH_MEASURE_H_

#include <cstdint>
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
};

// Measures a point: one run of each length that is not timed, then `reps` timed ones of each. The
// point has passed CheckPoint.
absl::StatusOr<PointFigures> MeasurePoint(OfflineEngine& engine, const BenchPoint& point,
                                          const MeasureOptions& options, PromptSource& source);

// Returns, for MeasurePoint, why the difference of two runs is not the time of steps of the whole
// batch; empty if it is.
std::string WhyNoStep(const BenchPoint& point, const OfflineRun& shorter, const OfflineRun& longer);

double Median(std::vector<double> values);  // not empty

}  // namespace millrace

#endif  // MILLRACE_SERVER_BENCH_MEASURE_H_
