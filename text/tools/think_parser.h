// Reasoning between two markers at the start of an answer: <think>…</think> and its kin.
#ifndef MILLRACE_TEXT_TOOLS_THINK_PARSER_H_
#define MILLRACE_TEXT_TOOLS_THINK_PARSER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "text/tools/output_parser.h"

namespace millrace {

struct ThinkFormat {
  std::string open;
  std::string close;
  // Other spellings, which mean the same.
  std::vector<std::string> more_opens = {};
  std::vector<std::string> more_closes = {};
  // What some models write around the answer itself; empty: nothing.
  std::string answer_open = {};
  std::string answer_close = {};
  // A word that the reasoning begins with, and that is none of it.
  std::string label = {};
};

// Makes the parser of what is no reasoning; nullptr: that is content.
using NextParser = std::function<std::unique_ptr<OutputParser>()>;

// Takes the reasoning out and hands the remainder to the parser that `next` makes. White space at
// both ends of the reasoning is dropped, and after it. A closing marker that comes again, and a
// second thought right after the first, belong to the reasoning.
//
// A call that stands in a thought which never closes is a call. So what follows one of `call_opens`
// in a thought is held back until the thought closes, or until it turns out to be no call.
//
// `inside`: the prompt has already written the opening marker.
std::unique_ptr<OutputParser> MakeThinkParser(const ThinkFormat& format, bool inside,
                                              const std::vector<std::string>& call_opens,
                                              NextParser next);

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOOLS_THINK_PARSER_H_
