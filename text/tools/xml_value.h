// Writes one argument of an element call as JSON, as its text comes.
#ifndef MILLRACE_TEXT_TOOLS_XML_VALUE_H_
#define MILLRACE_TEXT_TOOLS_XML_VALUE_H_

#include <string>
#include <string_view>

#include "text/tools/argument_type.h"
#include "text/tools/json_prefix.h"

namespace millrace {

// Returns a text as a JSON string with its quotes, and appends its inside without them. The text is
// taken for UTF-8, unchecked.
std::string Quoted(std::string_view text);
void AppendEscaped(std::string_view text, std::string* out);

// An argument is what its type says. A string stands in the answer as it is; anything else as JSON,
// or as Python writes it. Where both are possible, what is JSON of the other types is that, and
// anything else is a string, which is passed on as soon as it is known to be one. A value that its
// type does not allow becomes a string, so that nothing is lost.
class XmlValue {
 public:
  // One newline at either end of the value's text does not belong to it.
  void Begin(ArgumentType type);
  void Step(char c, std::string* out);
  void End(std::string* out);
  // Appends what is known of a value that is cut off, and leaves it open.
  void Cut(std::string* out);

  // Returns whether the text so far is a whole value, and could be no text.
  bool complete() const {
    return !streams_ && !type_.has(ArgumentType::kString) && json_.complete();
  }
  // Returns whether the next byte begins a line.
  bool at_line_start() const { return last_ == '\n'; }

 private:
  bool MayBeOther() const;
  void BeginText(std::string* out);
  void StepText(char c, std::string* out);

  ArgumentType type_;
  char last_ = '\n';
  std::string text_;      // while it is not known to be a string
  JsonPrefix json_;       // follows text_
  bool is_json_ = true;   // so far
  bool streams_ = false;  // it is a string, and its opening quote is written
  bool first_ = true;     // of the string's bytes
  bool newline_ = false;  // held back, as the last one does not count
};

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOOLS_XML_VALUE_H_
