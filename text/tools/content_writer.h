// Writes an answer's content, without the white space around what is taken out of it.
#ifndef MILLRACE_TEXT_TOOLS_CONTENT_WRITER_H_
#define MILLRACE_TEXT_TOOLS_CONTENT_WRITER_H_

#include <string>
#include <string_view>
#include <utility>

#include "text/tools/output_parser.h"

namespace millrace {

inline bool IsAnswerSpace(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// Holds white space back until something follows it, so that it can still be dropped before a call.
class ContentWriter {
 public:
  void Add(char c, OutputDelta* out) {
    if (IsAnswerSpace(c)) {
      if (!skips_) space_ += c;
      return;
    }
    skips_ = false;
    only_space_ = false;
    out->content += std::exchange(space_, std::string());
    out->content += c;
  }
  void Add(std::string_view text, OutputDelta* out) {
    for (const char c : text) Add(c, out);
  }
  // Forgets the white space that was held back: a call follows.
  void DropSpace() { space_.clear(); }
  // Drops the white space that follows: a call has ended.
  void SkipSpace() { skips_ = true; }
  // Returns whether nothing but white space has come since SkipSpace.
  bool skips() const { return skips_; }
  // Returns whether nothing but white space has come.
  bool only_space() const { return only_space_; }
  // Ends the content: its own white space at the end stays.
  void Finish(OutputDelta* out) { out->content += std::exchange(space_, std::string()); }

 private:
  std::string space_;
  bool skips_ = false;
  bool only_space_ = true;
};

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOOLS_CONTENT_WRITER_H_
