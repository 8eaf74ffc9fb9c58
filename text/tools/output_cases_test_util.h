// Answers in every form, and what of them is content, reasoning and calls.
#ifndef MILLRACE_TEXT_TOOLS_OUTPUT_CASES_TEST_UTIL_H_
#define MILLRACE_TEXT_TOOLS_OUTPUT_CASES_TEST_UTIL_H_

#include <ostream>
#include <string>
#include <vector>

namespace millrace {

// An answer put together from its deltas.
struct WholeOutput {
  std::string content;
  std::string reasoning;
  std::vector<std::string> calls;  // "name(arguments)"

  bool operator==(const WholeOutput&) const = default;
};

inline void PrintTo(const WholeOutput& whole, std::ostream* out) {
  *out << "content [" << whole.content << "] reasoning [" << whole.reasoning << "] calls";
  for (const std::string& call : whole.calls) *out << " [" << call << "]";
}

struct OutputCase {
  std::string tools;
  std::string reasoning;
  std::string text;
  WholeOutput whole;
  bool inside = false;  // the prompt has opened the reasoning
};

// Parsed with the tools of output_parser_test.cc.
std::vector<OutputCase> JsonOutputCases();     // calls as JSON, with and without reasoning
std::vector<OutputCase> ElementOutputCases();  // calls with an element for each argument
// Answers whose reasoning counts, and calls as literals and to recipients.
std::vector<OutputCase> OtherOutputCases();

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOOLS_OUTPUT_CASES_TEST_UTIL_H_
