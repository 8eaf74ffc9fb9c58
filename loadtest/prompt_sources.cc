#include "loadtest/prompt_sources.h"

#include <algorithm>
#include <optional>

#include "base/strings.h"
#include "loadtest/numbers.h"

namespace millrace {
namespace {

constexpr size_t kMostSources = 32;
constexpr size_t kLongestName = 40;

struct SourceMetric {
  std::string_view name;
  std::string_view label;   // with what opens its value
  std::string_view prefix;  // of the source in our tables
};

constexpr SourceMetric kMetrics[] = {
    {"vllm:prompt_tokens_by_source_total{", "source=\"", ""},
    {"vllm:prompt_tokens_cached_by_source_total{", "source=\"", "cached, "},
    {"sglang:cached_tokens_total{", "cache_source=\"", "cached, "},
};

// Returns the value of a label; "" if the line has none.
std::string_view LabelOf(std::string_view labels, std::string_view label) {
  for (size_t at = labels.find(label); at != labels.npos; at = labels.find(label, at + 1)) {
    const bool is_whole = at > 0 && (labels[at - 1] == '{' || labels[at - 1] == ',');
    if (!is_whole) continue;  // the end of another label's name
    const std::string_view rest = labels.substr(at + label.size());
    return rest.substr(0, rest.find('"'));
  }
  return "";
}

void TakeLine(std::string_view line, PromptSources& sources) {
  for (const SourceMetric& metric : kMetrics) {
    if (!line.starts_with(metric.name)) continue;
    const size_t end = line.rfind('}');
    if (end == line.npos) return;
    // A time may stand behind the value.
    const std::string_view value = Trim(line.substr(end + 1));
    const std::optional<double> tokens = ParseDecimal(value.substr(0, value.find(' ')));
    const std::string_view source =
        LabelOf(line.substr(metric.name.size() - 1, end - metric.name.size() + 1), metric.label);
    if (!tokens || source.empty()) return;
    const std::string name = StrCat(metric.prefix, Printable(source, kLongestName));
    if (sources.size() < kMostSources || sources.contains(name)) sources[name] += *tokens;
    return;
  }
}

}  // namespace

PromptSources ParsePromptSources(std::string_view metrics) {
  PromptSources sources;
  while (!metrics.empty()) {
    const size_t end = std::min(metrics.find('\n'), metrics.size());
    TakeLine(metrics.substr(0, end), sources);
    metrics.remove_prefix(std::min(end + 1, metrics.size()));
  }
  return sources;
}

PromptSources CountedSince(const PromptSources& before, PromptSources after) {
  for (auto& [name, tokens] : after) {
    const auto earlier = before.find(name);
    // A server that has begun anew counts from 0.
    if (earlier != before.end() && earlier->second <= tokens) tokens -= earlier->second;
  }
  std::erase_if(after, [](const auto& source) { return source.second <= 0; });
  return after;
}

}  // namespace millrace
