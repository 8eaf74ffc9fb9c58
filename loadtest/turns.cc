#include "loadtest/turns.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_set>
#include <utility>

#include "base/strings.h"
#include "loadtest/histogram.h"
#include "loadtest/text_report.h"

namespace millrace {
namespace {

constexpr size_t kMostRows = 64;
constexpr size_t kMostTierNames = 16;

std::vector<std::string> TiersOf(const std::vector<RequestRecord>& records) {
  std::set<std::string> tiers;
  for (const RequestRecord& record : records) {
    for (const auto& [tier, tokens] : record.cached_by_tier) {
      if (tiers.size() < kMostTierNames) tiers.insert(tier);
    }
  }
  return {tiers.begin(), tiers.end()};
}

// Returns how many tokens of a prompt no prompt before it had: of a later turn those behind the
// turn before, without an answer that another branch brought; of a first one those behind the tools
// and system messages that one of `beginnings` had. Both by their share of the bytes.
int64_t NewTokens(const RequestRecord& record, std::unordered_set<uint64_t>& beginnings) {
  if (record.prompt_before == 0 &&
      (record.beginning == 0 || beginnings.insert(record.beginning).second)) {
    return record.prompt_tokens;
  }
  const int64_t behind = std::max<int64_t>(0, record.prompt_tokens - record.prompt_before);
  return std::llround(static_cast<double>(behind) * record.own_share);
}

// One row while it is summed.
struct OpenRow {
  TurnSums sums;
  std::vector<double> ttfts;
  std::vector<double> latencies;

  void Add(const RequestRecord& record, int64_t new_tokens, const std::vector<std::string>& tiers) {
    ++sums.requests;
    sums.failed += record.outcome == Outcome::kFailed ? 1 : 0;
    sums.cached_by_tier.resize(tiers.size());
    if (record.outcome != Outcome::kCompleted) return;
    ++sums.completed;
    sums.prompt_tokens += record.prompt_tokens;
    sums.cached_tokens += record.cached_tokens;
    sums.new_tokens += new_tokens;
    sums.output_tokens += record.output_tokens;
    for (const auto& [tier, tokens] : record.cached_by_tier) {
      const auto at = std::lower_bound(tiers.begin(), tiers.end(), tier);
      if (at != tiers.end() && *at == tier) {
        sums.cached_by_tier[static_cast<size_t>(at - tiers.begin())] += tokens;
      }
    }
    if (record.slow) return;
    latencies.push_back(record.latency());
    if (record.first > 0) ttfts.push_back(record.ttft());
  }

  TurnSums Finish() {
    std::sort(ttfts.begin(), ttfts.end());
    std::sort(latencies.begin(), latencies.end());
    sums.ttft_median = SortedQuantile(ttfts, 0.5) * 1e3;
    sums.ttft_p99 = SortedQuantile(ttfts, 0.99) * 1e3;
    sums.latency_median = SortedQuantile(latencies, 0.5) * 1e3;
    sums.latency_p99 = SortedQuantile(latencies, 0.99) * 1e3;
    return std::move(sums);
  }
};

}  // namespace

std::string TurnTable::NameOf(size_t row) const {
  return StrCat(row + 1, has_more && row + 1 == rows.size() ? "+" : "");
}

std::optional<double> TurnTable::ComputedPerNew() const {
  if (!has_new || all.new_tokens == 0) return std::nullopt;
  return static_cast<double>(all.computed_tokens()) / static_cast<double>(all.new_tokens);
}

TurnTable SumByTurn(const std::vector<RequestRecord>& records, bool is_replay) {
  TurnTable table{.has_new = is_replay};
  size_t turns = 0;
  for (const RequestRecord& record : records) turns = std::max<size_t>(turns, record.turn + 1);
  if (turns < 2) return table;
  table.tiers = TiersOf(records);
  table.has_more = turns > kMostRows;
  std::vector<OpenRow> rows(std::min(turns, kMostRows));
  OpenRow all;
  std::unordered_set<uint64_t> beginnings;
  for (const RequestRecord& record : records) {
    const bool is_completed = record.outcome == Outcome::kCompleted;
    const int64_t new_tokens = is_completed ? NewTokens(record, beginnings) : 0;
    rows[std::min<size_t>(record.turn, rows.size() - 1)].Add(record, new_tokens, table.tiers);
    all.Add(record, new_tokens, table.tiers);
  }
  for (OpenRow& row : rows) table.rows.push_back(row.Finish());
  table.all = all.Finish();
  return table;
}

std::vector<std::string> TurnTitles(const TurnTable& table) {
  std::vector<std::string> titles = {"turn", "requests", "failed"};
  if (table.all.cut() > 0) titles.emplace_back("cut");
  for (const char* title : {"TTFT p50", "p99", "E2EL p50", "p99", "prompt", "cached"}) {
    titles.emplace_back(title);
  }
  titles.insert(titles.end(), table.tiers.begin(), table.tiers.end());
  titles.emplace_back("computed");
  if (table.has_new) titles.emplace_back("new");
  titles.emplace_back("output");
  return titles;
}

std::vector<std::string> TurnCells(const TurnTable& table, size_t row) {
  const bool is_sum = row == table.rows.size();
  const TurnSums& sums = is_sum ? table.all : table.rows[row];
  std::vector<std::string> cells = {is_sum ? "all" : table.NameOf(row), StrCat(sums.requests),
                                    StrCat(sums.failed)};
  if (table.all.cut() > 0) cells.push_back(StrCat(sums.cut()));
  for (const double time :
       {sums.ttft_median, sums.ttft_p99, sums.latency_median, sums.latency_p99}) {
    cells.push_back(Figure(time));
  }
  cells.push_back(StrCat(sums.prompt_tokens));
  cells.push_back(StrCat(sums.cached_tokens));
  for (const int64_t tokens : sums.cached_by_tier) cells.push_back(StrCat(tokens));
  cells.push_back(StrCat(sums.computed_tokens()));
  if (table.has_new) cells.push_back(StrCat(sums.new_tokens));
  cells.push_back(StrCat(sums.output_tokens));
  return cells;
}

}  // namespace millrace
