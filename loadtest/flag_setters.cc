#include "loadtest/flag_setters.h"

#include <algorithm>

#include "absl/strings/ascii.h"

namespace millrace {

bool IsPrintableAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

absl::Status AddHeader(Options& options, std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const auto is_token = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  };
  const bool is_name = !name.empty() && std::all_of(name.begin(), name.end(), is_token);
  if (colon == text.npos || !is_name || !IsPrintableAscii(text)) {
    return Expected(text, "NAME:VALUE in printable ASCII");
  }
  options.headers.emplace_back(name, Trim(text.substr(colon + 1)));
  return absl::OkStatus();
}

absl::Status AddServerFact(Options& options, std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == 0 || equals == text.npos || equals + 1 == text.size()) {
    return Expected(text, "NAME=VALUE");
  }
  options.metadata.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  return absl::OkStatus();
}

absl::Status SetArrival(Options& options, std::string_view text) {
  if (text.starts_with("trace:") || text.starts_with("trace=")) {
    options.trace_file = std::string(text.substr(6));
    text = "trace";
  }
  return SetOneOf(&Options::arrival, std::vector<std::pair<std::string_view, ArrivalKind>>{
                                         {"poisson", ArrivalKind::kPoisson},
                                         {"constant", ArrivalKind::kConstant},
                                         {"burst", ArrivalKind::kBurst},
                                         {"ramp", ArrivalKind::kRamp},
                                         {"trace", ArrivalKind::kTrace}})(options, text);
}

absl::Status SetRate(Options& options, std::string_view text) {
  if (text == "inf") {  // vLLM's default: all at once, bounded by the concurrency alone
    options.rate.reset();
    return absl::OkStatus();
  }
  return SetReal(&Options::rate, 1e-3, 1e6)(options, text);
}

absl::Status SetGoal(Options& options, std::string_view text) {
  constexpr std::string_view kAllowed =
      "ttft:MS, tpot:MS or e2el:MS, separated by spaces or commas";
  for (const std::string_view goal : SplitList(text)) {
    const size_t colon = std::min(goal.find(':'), goal.size() - 1);
    const std::optional<double> bound = ParseDecimal(goal.substr(colon + 1));
    const std::string_view name = goal.substr(0, colon);
    if (!bound || *bound < 0) return Expected(goal, kAllowed);
    if (name == "ttft") {
      options.goals.ttft = bound;
    } else if (name == "tpot") {
      options.goals.tpot = bound;
    } else if (name == "e2el") {
      options.goals.e2el = bound;
    } else {
      return Expected(goal, kAllowed);
    }
  }
  return absl::OkStatus();
}

}  // namespace millrace
