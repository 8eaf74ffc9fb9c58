#include "text/stop_checker.h"

#include <algorithm>
#include <utility>

namespace millrace {

StopChecker::StopChecker(std::vector<std::string> stops, bool include_stop_in_output)
    : include_stop_in_output_(include_stop_in_output) {
  for (std::string& stop : stops) {
    Matcher& matcher = matchers_.emplace_back();
    matcher.stop = std::move(stop);
    matcher.failure = {0, 0};
    // The table for n bytes is what matching the string against itself, from its second byte,
    // reaches.
    for (size_t i = 1; i < matcher.stop.size(); ++i) {
      matcher.Step(matcher.stop[i]);
      matcher.failure.push_back(matcher.matched);
    }
    matcher.matched = 0;
  }
}

void StopChecker::Matcher::Step(char byte) {
  while (matched > 0 && stop[matched] != byte) matched = failure[matched];
  if (stop[matched] == byte) ++matched;
}

StopChecker::Result StopChecker::Add(std::string_view delta, bool may_stop) {
  for (size_t i = 0; i < delta.size(); ++i) {
    std::optional<size_t> complete;
    for (size_t m = 0; m < matchers_.size(); ++m) {
      Matcher& matcher = matchers_[m];
      matcher.Step(delta[i]);
      if (matcher.matched < matcher.stop.size()) continue;
      if (!may_stop) {
        matcher.matched = matcher.failure.back();
      } else if (!complete || matcher.stop.size() > matchers_[*complete].stop.size()) {
        complete = m;
      }
    }
    if (complete) {
      Result result{std::move(held_), complete};
      result.text.append(delta.substr(0, i + 1));
      if (!include_stop_in_output_) {
        result.text.resize(result.text.size() - matchers_[*complete].stop.size());
      }
      held_.clear();
      return result;
    }
  }
  size_t hold = 0;
  for (const Matcher& matcher : matchers_) hold = std::max<size_t>(hold, matcher.matched);
  Result result{std::move(held_), std::nullopt};
  result.text.append(delta);
  held_ = result.text.substr(result.text.size() - hold);
  result.text.resize(result.text.size() - hold);
  return result;
}

std::string StopChecker::Flush() { return std::exchange(held_, {}); }

}  // namespace millrace
