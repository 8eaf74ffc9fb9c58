// Sums by turn: what the first, second and later requests of sessions took.
#ifndef MILLRACE_LOADTEST_TURNS_H_
#define MILLRACE_LOADTEST_TURNS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "loadtest/meter.h"

namespace millrace {

// Sums over the requests that were the same turn of their sessions. Tokens and times are those of
// completed ones; times are milliseconds, and leave slow readers out.
struct TurnSums {
  int64_t requests = 0;
  int64_t completed = 0;
  int64_t failed = 0;
  double ttft_median = 0;
  double ttft_p99 = 0;
  double latency_median = 0;
  double latency_p99 = 0;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  std::vector<int64_t> cached_by_tier;  // as TurnTable::tiers
  int64_t new_tokens = 0;               // of prompts, that no prompt before had; of replays
  int64_t output_tokens = 0;

  int64_t computed_tokens() const { return prompt_tokens - cached_tokens; }
  // Returns how many were cancelled, took longer than --deadline or did not end.
  int64_t cut() const { return requests - completed - failed; }
};

struct TurnTable {
  std::vector<std::string> tiers;  // of caches, as the server names them, in alphabetical order
  bool has_new = false;            // new_tokens are known
  std::vector<TurnSums> rows;      // the first of the first turn
  bool has_more = false;           // the last row also has all later turns
  TurnSums all;

  // Returns the number of a row's turn: "1", or "64+".
  std::string NameOf(size_t row) const;
  // Returns how often each new prompt token was computed; nullopt if that is not known.
  std::optional<double> ComputedPerNew() const;
};

// Records must be in the order in which they were due: of sessions that begin alike, the first
// brings their beginning as new tokens; of branches, the first brings the answer that they go on
// from. Empty without a request that was a later turn.
TurnTable SumByTurn(const std::vector<RequestRecord>& records, bool is_replay);

// Returns the table's titles, and a row's cells under them: figures as texts. Tables for terminals
// and for pages are made of them. A row after the last has the sums of all turns.
std::vector<std::string> TurnTitles(const TurnTable& table);
std::vector<std::string> TurnCells(const TurnTable& table, size_t row);

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_TURNS_H_
