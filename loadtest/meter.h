// The record of each request, and the count of its tokens' times.
#ifndef MILLRACE_LOADTEST_METER_H_
#define MILLRACE_LOADTEST_METER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "loadtest/histogram.h"

namespace millrace {

enum class Outcome : uint8_t {
  kCompleted,
  kFailed,      // an error of the server, of the connection or of the stream
  kCancelled,   // by --cancel-ratio
  kDeadline,    // it took longer than --deadline
  kUnfinished,  // it ran when the run's grace, or the user, ended it
};

// One request's figures. Times are seconds after the run's start.
struct RequestRecord {
  uint64_t session = 0;
  uint32_t turn = 0;
  Outcome outcome = Outcome::kFailed;
  bool slow = false;
  bool counted = false;  // the server has said how many tokens came, or sent them one by one
  double intended = 0;   // when it should have been sent; latencies count from here
  double sent = 0;
  double first = 0;  // arrival of the first token; 0: none came
  double last = 0;   // arrival of the last token
  double end = 0;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;
  // Cached tokens by the tier that had them, as far as the server says.
  std::vector<std::pair<std::string, int64_t>> cached_by_tier;
  int64_t prompt_before = 0;      // tokens of the prompt that this one goes on from; 0: it does not
  uint64_t beginning = 0;         // of a first request of a replay: as in Request
  double own_share = 1;           // likewise
  std::vector<float> token_gaps;  // one a token after the first arrival, for --save-detailed
  std::string text;               // for --save-detailed, and of the first few requests
  std::string error;

  double ttft() const { return first - intended; }
  double latency() const { return end - intended; }
  // Returns seconds a token after the first; 0 of a single token.
  double tpot() const {
    return output_tokens > 1 ? (last - first) / static_cast<double>(output_tokens - 1) : 0;
  }
};

// A second of a run.
struct TimelineSecond {
  double tokens = 0;
  int64_t sent = 0;
  int64_t completed = 0;
  int64_t failed = 0;
  Histogram gaps;  // times between tokens
};

// Sessions that began, and those of them that ended by themselves or by a failure. The others were
// cancelled, or the run's end cut them.
struct SessionCounts {
  int64_t begun = 0;
  int64_t completed = 0;
  int64_t failed = 0;
};

// Everything that one thread has measured.
struct Measurements {
  Histogram token_gaps;  // times between tokens
  Histogram pauses;      // times between arrivals, which may bring several tokens
  std::vector<TimelineSecond> seconds;
  std::vector<RequestRecord> records;
  SessionCounts sessions;

  TimelineSecond& Second(double time);
  void Merge(Measurements&& other);
};

// Counts the tokens of one stream. Several tokens that come at once (in one event, or in events
// that were read together) share the time since the arrival before: a gap of 30 ms that brings 3
// tokens counts as three of 10 ms. Where the server counts other tokens than events came, its count
// wins, and the events' shares are scaled to it.
class StreamMeter {
 public:
  void Arrive(double now, int64_t tokens);
  int64_t tokens() const { return tokens_; }

  // Fills in the record's tokens and times, and adds the gaps. `counted`: by the server, 0 if it
  // did not say. `keep_gaps`: fills record.token_gaps, too.
  void Finish(int64_t counted, bool keep_gaps, RequestRecord& record, Measurements& to) const;

 private:
  struct Arrival {
    float gap;
    float tokens;
  };

  double first_ = 0;
  double last_ = 0;
  int64_t tokens_ = 0;
  int64_t first_tokens_ = 0;
  std::vector<Arrival> arrivals_;  // after the first
};

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_METER_H_
