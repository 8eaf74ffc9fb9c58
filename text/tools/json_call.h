// Reads JSON values, and the JSON objects that models write for tool calls, byte by byte.
#ifndef MILLRACE_TEXT_TOOLS_JSON_CALL_H_
#define MILLRACE_TEXT_TOOLS_JSON_CALL_H_

#include <string>

#include "formats/json/json.h"

namespace millrace {

// Limits of tools and of calls' arguments, which come as texts: deep enough for every call that is
// taken for one.
inline constexpr JsonLimits kCallJson{.depth = 512, .repeats = true};

enum class JsonStep {
  kMore,    // the byte belongs to the value, which goes on
  kEnd,     // the byte is the value's last one
  kBefore,  // the value ended before this byte
  kBad,     // this is no JSON
};

// Finds the end of one JSON value. Checks brackets and strings, which within brackets may stand in
// single quotes, too, and words, and leaves the rest to readers.
class JsonExtent {
 public:
  JsonStep Step(char c);

 private:
  std::string open_;   // the brackets that are open, outermost first
  char quote_ = '\0';  // of the string that is open
  bool escaped_ = false;
  bool scalar_ = false;  // a number or a word has begun
  bool begun_ = false;
};

// Reads {"name": "…", "arguments": {…}} in any order of its members, whose other members are passed
// over. The name may also be called `tool_name`, and the arguments `parameters`, and they may be a
// string with JSON in it.
class JsonCallReader {
 public:
  // `keyed`: the object is {"NAME": {…}} instead.
  explicit JsonCallReader(bool keyed = false) : keyed_(keyed) {}

  // Reads a byte of the object, the first of which is its bracket.
  JsonStep Step(char c);

  // The name is known, and so is a byte of the arguments.
  bool announced() const { return has_name_ && has_arguments_; }
  bool has_name() const { return has_name_; }
  // The arguments are whole, though perhaps not the object.
  bool has_all_arguments() const { return has_arguments_ && state_ != State::kInValue; }
  const std::string& name() const { return name_; }
  // Returns the arguments' text that has come since the last call. Call once it is announced.
  std::string TakeArguments();

 private:
  enum class State { kBegin, kKeyOrEnd, kKey, kInKey, kColon, kValue, kInValue, kNextOrEnd };
  enum class Member { kName, kArguments, kOther };

  JsonStep StepInValue(char c);
  bool EndValue();

  bool keyed_;
  State state_ = State::kBegin;
  JsonExtent extent_;
  std::string text_;  // of the key, or of a value that is kept whole
  Member member_ = Member::kOther;
  bool quoted_ = false;  // the arguments are a string
  bool has_name_ = false;
  bool has_arguments_ = false;
  std::string name_;
  std::string arguments_;
};

// Returns the value of a JSON string with its quotes. False: it is none.
bool DecodeJsonString(const std::string& text, std::string* value);

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOOLS_JSON_CALL_H_
