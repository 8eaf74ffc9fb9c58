// Checks JSON strictly (RFC 8259), byte by byte.
#ifndef MILLRACE_TEXT_TOOLS_JSON_PREFIX_H_
#define MILLRACE_TEXT_TOOLS_JSON_PREFIX_H_

#include <string>
#include <string_view>

namespace millrace {

// Follows one JSON value, with white space around it. The text is taken for UTF-8, unchecked.
class JsonPrefix {
 public:
  // Takes a byte. False: no JSON value goes on so; the state is what it was before.
  bool Step(char c);

  // Returns whether the text so far is a whole value. A number may still go on.
  bool complete() const;
  // Returns whether a byte other than white space has come.
  bool begun() const { return state_ != State::kValue || !open_.empty(); }
  // Returns what the next byte belongs to, or may begin.
  bool in_string() const {
    return state_ == State::kString || state_ == State::kEscape || state_ == State::kHex;
  }
  bool in_escape() const { return state_ == State::kEscape; }
  bool wants_key() const { return state_ == State::kKey || state_ == State::kFirstKey; }
  bool wants_value() const { return state_ == State::kValue || state_ == State::kFirstValue; }
  bool wants_comma() const { return state_ == State::kNext || (!open_.empty() && NumberMayEnd()); }
  // Returns a text that makes the value whole: what is open is closed, what is missing is null.
  std::string Completion() const;

 private:
  enum class State {
    kValue,       // a value comes
    kFirstValue,  // a value, or the list's end
    kFirstKey,    // a key, or the object's end
    kKey,
    kColon,
    kNext,  // a comma, or the end of what is open
    kString,
    kEscape,
    kHex,
    kWord,
    kMinus,
    kZero,
    kDigits,
    kPoint,
    kFraction,
    kExponent,
    kExponentSign,
    kExponentDigits,
    kDone,
  };

  bool Begin(char c);
  bool StepString(char c);
  bool StepNumber(char c);
  bool NumberMayEnd() const;
  void EndValue() { state_ = open_.empty() ? State::kDone : State::kNext; }

  State state_ = State::kValue;
  std::string open_;       // the brackets that are open, outermost first
  bool key_ = false;       // the string is a key
  const char* word_ = "";  // what is still missing of true, false or null
  int hex_ = 0;            // digits of an escape that are still missing
};

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOOLS_JSON_PREFIX_H_
