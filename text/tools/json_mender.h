// Makes JSON of what models write for it.
#ifndef MILLRACE_TEXT_TOOLS_JSON_MENDER_H_
#define MILLRACE_TEXT_TOOLS_JSON_MENDER_H_

#include <string>
#include <string_view>

#include "text/tools/json_prefix.h"
#include "text/tools/output_parser.h"

namespace millrace {

// Passes JSON on as it comes, byte for byte, and mends what is wrong in the ways of models: line
// breaks and unknown escapes in strings, strings in single quotes, keys without quotes, Python's
// constants, a comma before a closing bracket. What is wrong in another way, and all after it, is
// passed on as it is.
class JsonMender {
 public:
  void Add(std::string_view text, std::string* out) {
    for (const char c : text) Step(c, out);
  }
  // Closes what is open, unless the answer was cut off.
  void Finish(AnswerEnd end, std::string* out);

 private:
  void Step(char c, std::string* out);
  void StepString(char c, std::string* out);
  void EndWord(std::string* out);
  void Feed(std::string_view text, std::string* out);

  JsonPrefix json_;
  bool broken_ = false;  // from here on the text is passed on as it is
  char quote_ = '\0';    // of the string that is open
  bool escape_ = false;  // in a string in single quotes
  std::string word_;     // a constant or a key, while it may go on
  std::string comma_;    // and white space after it, until something follows
};

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOOLS_JSON_MENDER_H_
