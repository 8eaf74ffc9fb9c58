// The figures as tables for people and as JSON.
#ifndef MILLRACE_SERVER_BENCH_REPORT_H_
#define MILLRACE_SERVER_BENCH_REPORT_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "executors/executor.h"
#include "server/bench/machine.h"
#include "server/bench/measure.h"
#include "server/bench/peer_figures.h"
#include "server/bench/step_trace.h"

namespace millrace {

// From the process's start to the first generated token.
struct StartFigures {
  double total_s;
  double before_load_s;    // the program's own start
  double load_s;           // of the model, with its warm-up
  double first_request_s;  // from the prompt to its first token
};

// Names what was measured, above the tables and at the head of the JSON.
struct BenchContext {
  std::string version;
  std::string settings;  // that were given
  std::string model_name;
  ModelInfo model;
  Machine machine;
  std::optional<GpuReading> gpu;
  StartFigures start;
};

std::string ContextText(const BenchContext& context);

// Return Markdown: the two lines of the head, then a line for each point. `peer`, if not null, has
// columns of its own: the tokens a second of another, and ours as a multiple of them.
std::string PointsHead(bool with_gpu, const PeerFigures* peer = nullptr);
std::string PointLine(const PointFigures& figures, bool with_gpu,
                      const PeerFigures* peer = nullptr);

// Returns the table "Where a decode step goes": a line for each kernel, then busy and span.
std::string TraceTable(const BenchPoint& point, const StepTrace& trace);

// Returns a table of all ranks' time: a line for each kernel of the first, then busy and span.
// Empty for one rank.
std::string RankTable(const std::vector<StepTrace>& ranks);

// A point's figures, and the traces of the ranks where they were taken.
struct MeasuredPoint {
  PointFigures figures;
  std::vector<StepTrace> traces;
};

// Returns a table of the experts that steps read, a line for each point. Empty for models without
// mixtures of experts.
std::string ExpertTable(const std::vector<MeasuredPoint>& points);

nlohmann::ordered_json ToJson(const BenchContext& context,
                              const std::vector<MeasuredPoint>& points);

}  // namespace millrace

#endif  // MILLRACE_SERVER_BENCH_REPORT_H_
