// When an open loop sends its requests, whatever the server's pace.
#ifndef MILLRACE_LOADTEST_ARRIVALS_H_
#define MILLRACE_LOADTEST_ARRIVALS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "loadtest/random.h"

namespace millrace {

enum class ArrivalKind { kPoisson, kConstant, kBurst, kRamp, kTrace };

// One request of a recorded trace.
struct TraceEntry {
  double time = 0;  // seconds after the trace's first request
  std::optional<int64_t> input_len;
  std::optional<int64_t> output_len;
};

struct ArrivalOptions {
  ArrivalKind kind = ArrivalKind::kPoisson;
  double rate = 1;         // requests a second; of a ramp, at its end
  double burstiness = 1;   // shape of the gamma distribution of gaps; 1: a Poisson process
  int64_t burst_size = 1;  // requests that come at once, of kBurst
  double ramp_start = 0;   // requests a second at the start of a ramp
  double ramp_time = 0;    // seconds from the start of a ramp to its end
  std::shared_ptr<const std::vector<TraceEntry>> trace;  // of kTrace
};

// Produces the times of arrival, in order. The same options and seed give the same times.
class Arrivals {
 public:
  Arrivals(const ArrivalOptions& options, uint64_t seed) : options_(options), random_(seed, 1) {}

  // Returns seconds after the start; nullopt after the end of a trace.
  std::optional<double> Next();

 private:
  double NextOfRamp();

  ArrivalOptions options_;
  Random random_;
  uint64_t index_ = 0;
  double time_ = 0;
  double mass_ = 0;  // expected arrivals of a ramp until the last one
};

// Reads a trace: a line a request, each a number of seconds or a JSON object with `timestamp` in
// milliseconds and optionally `input_length` and `output_length` (Mooncake's format). Times count
// from the earliest. An error names the line.
absl::StatusOr<std::vector<TraceEntry>> ParseTrace(std::string_view text);

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_ARRIVALS_H_
