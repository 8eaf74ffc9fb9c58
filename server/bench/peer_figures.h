// The figures of another program, or of an earlier run, to stand beside ours.
#ifndef MILLRACE_SERVER_BENCH_PEER_FIGURES_H_
#define MILLRACE_SERVER_BENCH_PEER_FIGURES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "config/settings.h"

namespace millrace {

// A peer's rates at a batch and a prompt's length.
struct PeerPoint {
  int32_t batch;
  int32_t input;
  std::optional<double> output_tokens_per_s;
  std::optional<double> prompt_tokens_per_s;
};

class PeerFigures {
 public:
  // Reads what `millraced bench --json` or `llama-bench -o json` wrote. Of the latter, a line that
  // only generates (n_prompt 0) stands for one sequence behind a prompt of n_depth tokens, and one
  // that generates nothing for a prompt of n_prompt tokens. NotFound: there is no such file;
  // InvalidArgument: it is neither.
  static absl::StatusOr<PeerFigures> Read(const std::string& path);
  static absl::StatusOr<PeerFigures> Parse(std::string_view text);

  // Returns the tokens a second that stand beside the point's: generated ones if `generates`, else
  // those of prompts.
  std::optional<double> Find(const BenchPoint& point, bool generates) const;

 private:
  std::vector<PeerPoint> points_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_BENCH_PEER_FIGURES_H_
