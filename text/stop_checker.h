// Finds stop strings that may span several tokens, and holds text back while it may be the
// beginning of one.
#ifndef MILLRACE_TEXT_STOP_CHECKER_H_
#define MILLRACE_TEXT_STOP_CHECKER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

// Follows each stop string with its own matcher (Knuth, Morris, Pratt 1977): the time is the text's
// length times the number of stop strings, and the memory four bytes for each of theirs.
//
// The text ends at the stop string that is complete first; of two that are complete with the same
// byte, the longer one counts. So the outcome does not depend on how the text is split into deltas.
class StopChecker {
 public:
  // Requires stop strings that are valid UTF-8 and not empty: text is then only ever cut between
  // characters.
  StopChecker(std::vector<std::string> stops, bool include_stop_in_output);

  // Returns whether there are no stop strings.
  bool empty() const { return matchers_.empty(); }

  struct Result {
    std::string text;               // to be shown now; all texts together are the answer
    std::optional<size_t> stopped;  // index of the stop string that ended the answer
  };
  // Appends text and returns what can be shown now. Holds back the longest end of the text that may
  // be the beginning of a stop string. Must not be called after a stop string matched. With
  // `may_stop` false (under min_tokens) a complete stop string ends nothing, but one that begins
  // here may be completed by what follows.
  Result Add(std::string_view delta, bool may_stop = true);

  // Returns the text that was held back, when the answer has ended by other means.
  std::string Flush();

 private:
  struct Matcher {
    std::string stop;
    // failure[n]: how much of stop's first n bytes, at their end, is also a beginning of it
    std::vector<uint32_t> failure;
    uint32_t matched = 0;

    void Step(char byte);
  };

  std::vector<Matcher> matchers_;
  bool include_stop_in_output_;
  std::string held_;
};

}  // namespace millrace

#endif  // MILLRACE_TEXT_STOP_CHECKER_H_
