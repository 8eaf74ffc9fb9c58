#include "loadtest/meter.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace millrace {

TimelineSecond& Measurements::Second(double time) {
  const auto second = static_cast<size_t>(std::max(0.0, time));
  if (second >= seconds.size()) seconds.resize(second + 1);
  return seconds[second];
}

void Measurements::Merge(Measurements&& other) {
  token_gaps.Merge(other.token_gaps);
  pauses.Merge(other.pauses);
  seconds.resize(std::max(seconds.size(), other.seconds.size()));
  for (size_t i = 0; i < other.seconds.size(); ++i) {
    seconds[i].tokens += other.seconds[i].tokens;
    seconds[i].sent += other.seconds[i].sent;
    seconds[i].completed += other.seconds[i].completed;
    seconds[i].failed += other.seconds[i].failed;
    seconds[i].gaps.Merge(other.seconds[i].gaps);
  }
  sessions.begun += other.sessions.begun;
  sessions.completed += other.sessions.completed;
  sessions.failed += other.sessions.failed;
  std::move(other.records.begin(), other.records.end(), std::back_inserter(records));
}

void StreamMeter::Arrive(double now, int64_t tokens) {
  if (tokens <= 0) return;
  if (tokens_ == 0) {
    first_ = now;
    first_tokens_ = tokens;
  } else {
    arrivals_.push_back({static_cast<float>(now - last_), static_cast<float>(tokens)});
  }
  tokens_ += tokens;
  last_ = now;
}

void StreamMeter::Finish(int64_t counted, bool keep_gaps, RequestRecord& record,
                         Measurements& to) const {
  record.output_tokens = counted > 0 ? counted : tokens_;
  if (tokens_ == 0) return;
  record.first = first_;
  record.last = last_;
  const double scale = static_cast<double>(record.output_tokens) / static_cast<double>(tokens_);
  to.Second(first_).tokens += static_cast<double>(first_tokens_) * scale;
  double time = first_;
  double rest = 0;
  for (const Arrival& arrival : arrivals_) {
    time += arrival.gap;
    const double tokens = arrival.tokens * scale;
    const double gap = arrival.gap / tokens;
    TimelineSecond& second = to.Second(time);
    second.tokens += tokens;
    if (!record.slow) {  // a slow reader's gaps are its own
      to.pauses.Add(arrival.gap);
      to.token_gaps.Add(gap, tokens);
      second.gaps.Add(gap, tokens);
    }
    rest += keep_gaps ? tokens : 0;
    for (; rest >= 0.5; --rest) record.token_gaps.push_back(static_cast<float>(gap));
  }
}

}  // namespace millrace
