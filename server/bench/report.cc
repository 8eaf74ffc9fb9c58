#include "server/bench/report.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/strings.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kBytesPerGb = 1e9;

std::string OrDash(const std::optional<double>& value, int decimals) {
  return value.has_value() ? absl::StrFormat("%.*f", decimals, *value) : "-";
}

// "(slowest - fastest) / median" of the longer length's runs.
double Spread(const LengthFigures& length) {
  const auto [least, most] = std::minmax_element(length.wall_ms.begin(), length.wall_ms.end());
  return (*most - *least) / length.median_ms;
}

std::string PointText(const BenchPoint& point) {
  return absl::StrCat("batch ", point.batch, ", ", point.input, " prompt tokens, ",
                      absl::StrJoin(point.outputs, " and "), " generated");
}

double GbPerS(double bytes, double us) { return bytes / us / 1e3; }

Json ToJson(const std::optional<GpuReading>& gpu) {
  if (!gpu.has_value()) return nullptr;
  return {{"name", gpu->name},     {"driver", gpu->driver},
          {"sm_mhz", gpu->sm_mhz}, {"memory_mhz", gpu->memory_mhz},
          {"watts", gpu->watts},   {"celsius", gpu->celsius}};
}

Json ToJson(const std::optional<double>& value) {
  return value.has_value() ? Json(*value) : Json(nullptr);
}

Json ToJson(const StepTrace& trace) {
  Json rows = Json::array();
  for (const StepTrace::Row& row : trace.rows) {
    rows.push_back({{"name", row.name},
                    {"us_per_step", row.us},
                    {"launches_per_step", row.launches},
                    {"share", row.share},
                    {"idle_us_before_per_step", row.idle_us},
                    {"bytes_per_step", row.bytes}});
  }
  return {{"steps", trace.steps},
          {"only_whole_steps", trace.only_whole_steps},
          {"launches_per_step", trace.launches},
          {"busy_us", trace.busy_us},
          {"span_us", trace.span_us},
          {"largest_gap_us", trace.largest_gap_us},
          {"after_gap", trace.after_gap},
          {"kernels", std::move(rows)}};
}

double Mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

Json ToJson(const std::optional<ExpertFigures>& experts) {
  if (!experts.has_value()) return nullptr;
  return {{"mixtures", experts->touched.size()},
          {"experts", experts->experts},
          {"touched", Mean(experts->touched)},
          {"touched_by_mixture", experts->touched},
          {"expert_bytes_per_step", experts->expert_bytes},
          {"bytes_per_step", ToJson(experts->step_bytes)},
          {"read_bytes_per_s", ToJson(experts->read_rate)},
          {"share_of_read_rate", ToJson(experts->share)}};
}

Json ToJson(const MeasuredPoint& measured) {
  const PointFigures& figures = measured.figures;
  Json lengths = Json::array();
  for (const LengthFigures& length : figures.lengths) {
    lengths.push_back(
        {{"output", length.output}, {"median_ms", length.median_ms}, {"wall_ms", length.wall_ms}});
  }
  Json others = Json::array();
  for (size_t i = 1; i < measured.traces.size(); ++i) others.push_back(ToJson(measured.traces[i]));
  return {{"batch", figures.point.batch},
          {"input", figures.point.input},
          {"lengths", std::move(lengths)},
          {"step_ms", ToJson(figures.step_ms)},
          {"output_tokens_per_s", ToJson(figures.output_tokens_per_s)},
          {"prompt_tokens_per_s", ToJson(figures.prompt_tokens_per_s)},
          {"experts", ToJson(figures.experts)},
          {"void_because", figures.void_because},
          {"gpu_before", ToJson(figures.before)},
          {"gpu_after", ToJson(figures.after)},
          {"trace", measured.traces.empty() ? Json(nullptr) : ToJson(measured.traces.front())},
          {"traces_of_other_ranks", std::move(others)}};
}

}  // namespace

std::string ContextText(const BenchContext& context) {
  const ModelInfo& model = context.model;
  std::string text =
      absl::StrFormat("millraced %s, %s (%s): %.2f GB of weights, %d KV blocks of %d tokens (%s)\n",
                      context.version, context.model_name, model.architecture,
                      static_cast<double>(model.weight_bytes) / kBytesPerGb,
                      model.limits.context_blocks(), model.limits.block_size(), model.kv_type);
  absl::StrAppend(&text, context.machine.cpu, ", ", context.machine.cores, " cores");
  if (context.gpu.has_value()) {
    absl::StrAppend(&text, "; ", context.gpu->name, ", driver ", context.gpu->driver);
  }
  if (!context.settings.empty()) absl::StrAppend(&text, "\n", context.settings);
  const StartFigures& start = context.start;
  absl::StrAppendFormat(
      &text, "\nstart to first token: %.3f s (program %.3f, load %.3f, first request %.3f)",
      start.total_s, start.before_load_s, start.load_s, start.first_request_s);
  for (const LoadPhase& phase : model.load_phases) {
    absl::StrAppendFormat(&text, "\n  %-32s %.3f s", phase.name, phase.seconds);
  }
  return text + "\n";
}

std::string PointsHead(bool with_gpu, const PeerFigures* peer) {
  std::string head =
      "| batch | prompt | output   | wall ms              | spread | step ms |   tok/s | prompt "
      "tok/s |";
  std::string rule =
      "|------:|-------:|---------:|---------------------:|-------:|--------:|--------:|---------"
      "----:|";
  if (peer != nullptr) {
    head += " peer tok/s | ratio |";
    rule += "-----------:|------:|";
  }
  if (with_gpu) {
    head += " SM MHz      | W         | C     |";
    rule += "------------:|----------:|------:|";
  }
  return head + "\n" + rule + "\n";
}

std::string PointLine(const PointFigures& figures, bool with_gpu, const PeerFigures* peer) {
  std::vector<std::string> walls;
  for (const LengthFigures& length : figures.lengths) {
    walls.push_back(absl::StrFormat("%.2f", length.median_ms));
  }
  std::string line = absl::StrFormat(
      "| %5d | %6d | %8s | %20s | %5.1f%% | %7s | %7s | %12s |", figures.point.batch,
      figures.point.input, absl::StrJoin(figures.point.outputs, ", "), absl::StrJoin(walls, ", "),
      100 * Spread(figures.lengths.back()), OrDash(figures.step_ms, 3),
      OrDash(figures.output_tokens_per_s, 0), OrDash(figures.prompt_tokens_per_s, 0));
  if (peer != nullptr) {
    const bool generates = figures.output_tokens_per_s.has_value();
    const auto& ours = generates ? figures.output_tokens_per_s : figures.prompt_tokens_per_s;
    const std::optional<double> theirs = peer->Find(figures.point, generates);
    std::optional<double> ratio;
    if (ours && theirs && *theirs > 0) ratio = *ours / *theirs;
    absl::StrAppendFormat(&line, " %10s | %5s |", OrDash(theirs, 0), OrDash(ratio, 2));
  }
  if (with_gpu) {
    const auto both = [&](double GpuReading::*member) {
      const auto one = [&](const std::optional<GpuReading>& reading) {
        return reading.has_value() ? absl::StrFormat("%.0f", *reading.*member) : "-";
      };
      return absl::StrCat(one(figures.before), " > ", one(figures.after));
    };
    absl::StrAppendFormat(&line, " %11s | %9s | %5s |", both(&GpuReading::sm_mhz),
                          both(&GpuReading::watts), both(&GpuReading::celsius));
  }
  line += "\n";
  for (const std::string& why : figures.void_because) absl::StrAppend(&line, "VOID: ", why, "\n");
  return line;
}

std::string TraceTable(const BenchPoint& point, const StepTrace& trace) {
  std::string text = absl::StrFormat(
      "Where a step goes (traced; means of %d steps %s; %.1f launches a step; %s)\n", trace.steps,
      trace.only_whole_steps ? "of the whole batch" : "of the run, prompts included",
      trace.launches, PointText(point));
  absl::StrAppendFormat(
      &text, "| %-72s | %10s | %8s | %6s | %11s | %9s | %5s |\n|%s|%s:|%s:|%s:|%s:|%s:|%s:|\n",
      "kernel", "us a step", "launches", "share", "idle before", "MB a step", "GB/s",
      std::string(74, '-'), std::string(11, '-'), std::string(9, '-'), std::string(7, '-'),
      std::string(12, '-'), std::string(10, '-'), std::string(6, '-'));
  double bytes = 0;
  for (const StepTrace::Row& row : trace.rows) {
    const bool known = row.bytes > 0 && row.us > 0;
    absl::StrAppendFormat(&text, "| %-72s | %10.1f | %8.1f | %5.1f%% | %11.1f | %9s | %5s |\n",
                          ShortKernelName(row.name), row.us, row.launches, 100 * row.share,
                          row.idle_us, known ? absl::StrFormat("%.2f", row.bytes / 1e6) : "-",
                          known ? absl::StrFormat("%.0f", GbPerS(row.bytes, row.us)) : "-");
    bytes += row.bytes;
  }
  if (bytes > 0) {
    absl::StrAppendFormat(&text, "%.1f MB a step must move: %.0f GB/s of the span\n", bytes / 1e6,
                          GbPerS(bytes, trace.span_us));
  }
  absl::StrAppendFormat(
      &text,
      "busy %.1f us / span %.1f us; idle %.1f us a step, the largest gap %.1f us before %s\n",
      trace.busy_us, trace.span_us, trace.span_us - trace.busy_us, trace.largest_gap_us,
      ShortKernelName(trace.after_gap));
  return text;
}

std::string RankTable(const std::vector<StepTrace>& ranks) {
  if (ranks.size() < 2) return "";
  std::string text =
      absl::StrFormat("The ranks beside one another, us a step\n| %-72s |", "kernel");
  for (size_t rank = 0; rank < ranks.size(); ++rank) absl::StrAppendFormat(&text, " %8d |", rank);
  absl::StrAppend(&text, "\n|", std::string(74, '-'), "|");
  for (size_t rank = 0; rank < ranks.size(); ++rank) absl::StrAppend(&text, "---------:|");
  const auto add_line = [&](std::string_view name, const auto& us_of) {
    absl::StrAppendFormat(&text, "\n| %-72s |", name);
    for (const StepTrace& rank : ranks) absl::StrAppendFormat(&text, " %8.1f |", us_of(rank));
  };
  for (const StepTrace::Row& row : ranks.front().rows) {
    add_line(ShortKernelName(row.name), [&](const StepTrace& rank) {
      const auto same = std::find_if(rank.rows.begin(), rank.rows.end(),
                                     [&](const auto& other) { return other.name == row.name; });
      return same == rank.rows.end() ? 0.0 : same->us;
    });
  }
  add_line("busy", [](const StepTrace& rank) { return rank.busy_us; });
  add_line("span", [](const StepTrace& rank) { return rank.span_us; });
  return text + "\n";
}

std::string ExpertTable(const std::vector<MeasuredPoint>& points) {
  std::string text;
  for (const MeasuredPoint& point : points) {
    const PointFigures& figures = point.figures;
    if (!figures.experts.has_value()) continue;
    const ExpertFigures& experts = *figures.experts;
    if (text.empty()) {
      text =
          "\nWhat a step reads (experts that get a token, the mean of the layers with mixtures; "
          "their weights in all layers; all that the step must move, of several GPUs on the "
          "first)\n"
          "| batch | prompt | output   | experts | of    | their GB | step GB |  GB/s | read rate "
          "| "
          "share  |\n"
          "|------:|-------:|---------:|--------:|------:|---------:|--------:|------:|----------:|"
          "-------:|\n";
    }
    const auto in = [](const std::optional<double>& value, double unit) {
      return value.has_value() ? std::optional<double>(*value / unit) : std::nullopt;
    };
    std::optional<double> rate;
    if (experts.step_bytes.has_value()) rate = GbPerS(*experts.step_bytes, *figures.step_ms * 1e3);
    absl::StrAppendFormat(
        &text, "| %5d | %6d | %8s | %7.1f | %5.1f | %8.3f | %7s | %5s | %9s | %6s |\n",
        figures.point.batch, figures.point.input, absl::StrJoin(figures.point.outputs, ", "),
        Mean(experts.touched), experts.experts, experts.expert_bytes / kBytesPerGb,
        OrDash(in(experts.step_bytes, kBytesPerGb), 3), OrDash(rate, 0),
        OrDash(in(experts.read_rate, kBytesPerGb), 0),
        experts.share.has_value() ? absl::StrFormat("%.1f%%", 100 * *experts.share) : "-");
  }
  return text;
}

Json ToJson(const BenchContext& context, const std::vector<MeasuredPoint>& points) {
  const ModelInfo& model = context.model;
  Json phases = Json::array();
  for (const LoadPhase& phase : model.load_phases) {
    phases.push_back({{"name", phase.name}, {"seconds", phase.seconds}});
  }
  Json measured = Json::array();
  for (const MeasuredPoint& point : points) measured.push_back(ToJson(point));
  return {{"version", context.version},
          {"settings", context.settings},
          {"model",
           {{"name", context.model_name},
            {"architecture", model.architecture},
            {"weight_bytes", model.weight_bytes},
            {"kv_type", model.kv_type},
            {"kv_block_size", model.limits.block_size()},
            {"kv_blocks", model.limits.context_blocks()}}},
          {"machine", {{"cpu", context.machine.cpu}, {"cores", context.machine.cores}}},
          {"gpu", ToJson(context.gpu)},
          {"start",
           {{"to_first_token_s", context.start.total_s},
            {"before_load_s", context.start.before_load_s},
            {"load_s", context.start.load_s},
            {"first_request_s", context.start.first_request_s},
            {"load_phases", std::move(phases)}}},
          {"points", std::move(measured)}};
}

}  // namespace millrace
