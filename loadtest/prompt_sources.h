// Where prompt tokens came from, as the metrics of servers count them.
#ifndef MILLRACE_LOADTEST_PROMPT_SOURCES_H_
#define MILLRACE_LOADTEST_PROMPT_SOURCES_H_

#include <map>
#include <string>
#include <string_view>

namespace millrace {

// Tokens by source, as "local_compute", or "cached, host" where a metric is of cached tokens alone.
using PromptSources = std::map<std::string, double>;

// Reads a page in Prometheus' text format: vllm:prompt_tokens_by_source_total,
// vllm:prompt_tokens_cached_by_source_total (Millrace has both, too) and
// sglang:cached_tokens_total, whatever their sources are. Series that differ in other labels are
// added up. Returns at most 32 sources; none of a page without these metrics.
PromptSources ParsePromptSources(std::string_view metrics);

// Returns what was counted between two pages, without sources that counted nothing.
PromptSources CountedSince(const PromptSources& before, PromptSources after);

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_PROMPT_SOURCES_H_
