#include "server/bench/measure.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace millrace {
namespace {

constexpr double kMsPerSecond = 1000;

// Runs a length once. What spoils it is added to `void_because`, once.
absl::StatusOr<OfflineRun> RunOnce(OfflineEngine& engine, const BenchPoint& point, int32_t output,
                                   const MeasureOptions& options, PromptSource& source,
                                   std::vector<std::string>& void_because) {
  MILLRACE_ASSIGN_OR_RETURN(
      const OfflineRun run,
      engine.Generate({.prompts = DrawPrompts(point, engine.info().limits.vocab_size, source),
                       .new_tokens = output,
                       .temperature = options.temperature}));
  const auto add = [&](std::string why) {
    if (std::find(void_because.begin(), void_because.end(), why) == void_because.end()) {
      void_because.push_back(std::move(why));
    }
  };
  if (run.prefix_hits > 0) add("the prefix cache had some of a prompt");
  if (run.preemptions > 0) add("the KV cache was too small: sequences were preempted");
  return run;
}

void AddRun(const OfflineRun& run, LengthFigures& length) {
  length.wall_ms.push_back(kMsPerSecond * ToSeconds(run.wall));
  length.steps = run.steps;
  if (length.mixtures.empty()) {
    length.mixtures = run.mixtures;
    return;
  }
  for (size_t i = 0; i < run.mixtures.size(); ++i) {
    length.mixtures[i].touched += run.mixtures[i].touched;
  }
}

void Derive(PointFigures& figures) {
  const BenchPoint& point = figures.point;
  for (LengthFigures& length : figures.lengths) length.median_ms = Median(length.wall_ms);
  const LengthFigures& last = figures.lengths.back();
  if (figures.lengths.size() == 2) {
    const LengthFigures& first = figures.lengths.front();
    figures.step_ms = (last.median_ms - first.median_ms) / (last.output - first.output);
    if (*figures.step_ms > 0) {
      figures.output_tokens_per_s = point.batch * kMsPerSecond / *figures.step_ms;
    } else {
      figures.void_because.push_back("a step is shorter than what the runs differ by");
    }
  } else if (last.output == 1) {
    figures.prompt_tokens_per_s =
        kMsPerSecond * point.batch * static_cast<double>(point.input) / last.median_ms;
  } else {
    figures.output_tokens_per_s =
        kMsPerSecond * point.batch * static_cast<double>(last.output) / last.median_ms;
  }
}

}  // namespace

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

absl::Status CheckPoint(const BenchPoint& point, const ModelInfo& model) {
  const StepLimits& limits = model.limits;
  if (point.batch > limits.max_num_seqs) {
    return absl::InvalidArgumentError(absl::StrCat("a batch of ", point.batch,
                                                   " sequences is more than --max-num-seqs (",
                                                   limits.max_num_seqs, ")"));
  }
  const int64_t tokens = int64_t{point.input} + point.outputs.back();
  if (tokens > limits.max_model_len) {
    return absl::InvalidArgumentError(
        absl::StrCat(point.input, " prompt tokens and ", point.outputs.back(),
                     " generated ones are more than --max-model-len (", limits.max_model_len, ")"));
  }
  const auto length = static_cast<int32_t>(tokens);
  for (int group = 0; group < limits.state.num_groups(); ++group) {
    const PagedState* const pages = limits.state.Paged(group);
    if (pages == nullptr) continue;
    const int64_t blocks = int64_t{point.batch} * limits.state.BlocksAtOnce(group, length);
    if (blocks <= limits.num_blocks[group]) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        point.batch, " sequences of ", tokens, " tokens take ", blocks, " KV blocks",
        pages->window.has_value() ? absl::StrCat(" for windows of ", *pages->window) : "",
        ", and there are ", limits.num_blocks[group]));
  }
  return absl::OkStatus();
}

std::vector<std::vector<Token>> DrawPrompts(const BenchPoint& point, int32_t vocab_size,
                                            PromptSource& source) {
  std::uniform_int_distribution<Token> any(0, vocab_size - 1);
  std::vector<std::vector<Token>> prompts(point.batch, std::vector<Token>(point.input));
  for (std::vector<Token>& prompt : prompts) {
    for (Token& token : prompt) token = any(source);
  }
  return prompts;
}

std::optional<ExpertFigures> SummarizeExperts(const OfflineEngine& engine,
                                              const PointFigures& figures) {
  const LengthFigures& first = figures.lengths.front();
  const LengthFigures& last = figures.lengths.back();
  if (last.mixtures.empty()) return std::nullopt;
  const bool two = figures.lengths.size() == 2;
  const double steps =
      static_cast<double>(last.wall_ms.size()) * (two ? last.output - first.output : last.steps);
  ExpertFigures experts{};
  for (size_t i = 0; i < last.mixtures.size(); ++i) {
    const MixtureUse& mixture = last.mixtures[i];
    const int64_t touched = mixture.touched - (two ? first.mixtures[i].touched : 0);
    experts.touched.push_back(static_cast<double>(touched) / steps);
    experts.expert_bytes += experts.touched.back() * static_cast<double>(mixture.expert_bytes);
    experts.experts += mixture.experts / static_cast<double>(last.mixtures.size());
  }
  if (!figures.step_ms.has_value() || *figures.step_ms <= 0) return experts;
  const BenchPoint& point = figures.point;
  const int64_t middle = point.input + (first.output + last.output) / 2;  // of the steps between
  const std::vector<int64_t> kernels =
      engine.DecodeBytes(point.batch, point.batch * middle, experts.touched);
  if (kernels.empty()) return experts;
  experts.step_bytes = std::accumulate(kernels.begin(), kernels.end(), 0.0);
  experts.read_rate = engine.MeasureReadRate();
  if (experts.read_rate.has_value()) {
    experts.share = *experts.step_bytes * kMsPerSecond / *figures.step_ms / *experts.read_rate;
  }
  return experts;
}

std::string WhyNoStep(const BenchPoint& point, const OfflineRun& shorter,
                      const OfflineRun& longer) {
  const int32_t wanted = point.outputs.back() - point.outputs.front();
  const int32_t whole = longer.whole_steps - shorter.whole_steps;
  if (whole == wanted) return "";
  return absl::StrCat(
      "the whole batch ran in ", whole, " of the ", wanted,
      " steps between the two lengths: its prompts took as many steps as the shorter one has, or "
      "more; raise the shorter length or --max-num-batched-tokens");
}

absl::StatusOr<PointFigures> MeasurePoint(OfflineEngine& engine, const BenchPoint& point,
                                          const MeasureOptions& options, PromptSource& source) {
  PointFigures figures{.point = point};
  for (const int32_t output : point.outputs) figures.lengths.push_back({.output = output});
  std::vector<OfflineRun> runs(point.outputs.size());
  int done = 0;
  const int all = static_cast<int>(runs.size()) * (options.reps + 1);
  for (int32_t rep = -1; rep < options.reps; ++rep) {  // the first is not timed
    if (rep == 0 && options.read_gpu) figures.before = ReadGpu();
    for (size_t i = 0; i < runs.size(); ++i) {
      options.progress(done++, all);
      MILLRACE_ASSIGN_OR_RETURN(
          runs[i], RunOnce(engine, point, point.outputs[i], options, source, figures.void_because));
      if (rep >= 0) AddRun(runs[i], figures.lengths[i]);
    }
  }
  if (options.read_gpu) figures.after = ReadGpu();
  // Every run of a length has the same steps.
  if (runs.size() == 2) {
    if (std::string why = WhyNoStep(point, runs[0], runs[1]); !why.empty()) {
      figures.void_because.push_back(std::move(why));
    }
  }
  Derive(figures);
  figures.experts = SummarizeExperts(engine, figures);
  return figures;
}

}  // namespace millrace
