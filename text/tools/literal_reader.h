// Reads the arguments of a call that are written as literals, byte by byte, as JSON.
#ifndef MILLRACE_TEXT_TOOLS_LITERAL_READER_H_
#define MILLRACE_TEXT_TOOLS_LITERAL_READER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json/json.h"
#include "text/tools/json_call.h"
#include "text/tools/output_parser.h"

namespace millrace {

// How arguments are written.
enum class ArgumentForm {
  kJson,
  kPython,         // (city="Paris", days=[1, 2], at=None)
  kGemma,          // {city:<|"|>Paris<|"|>,days:[1,2],at:null}
  kFunctionGemma,  // the same with <escape> for a quotation mark
};

// Returns what stands for a quotation mark in Gemma's forms; "" for the other forms.
std::string_view LiteralQuote(ArgumentForm form);

// Writes the arguments of one call as a JSON object, strings as they come. In Python's form strings
// may have either quote, three of them, prefixes, escapes and further strings behind them, lists
// may be tuples, keys of dictionaries may be any scalar, and arguments without a name take those of
// the schema's properties in their order. A word that is no literal is a string, and so is a number
// or a truth value where the schema allows strings alone.
class LiteralReader {
 public:
  // `parameters` is the tool's schema, or null.
  LiteralReader(ArgumentForm form, OrderedJson parameters);

  // Takes a byte, the first of which is the opening bracket. Appends to `out` what is known.
  JsonStep Step(char c, std::string* out);
  // Closes what is open, unless the answer was cut off.
  void Finish(AnswerEnd end, std::string* out);

 private:
  enum class State {
    kOpen,
    kItem,    // before a key, a value or a bracket's end
    kKey,     // in a key without quotes
    kColon,   // after a key
    kValue,   // before the value of a key
    kQuote,   // in what may be Gemma's quotation mark
    kQuotes,  // after one or two quotation marks that begin a string
    kString,
    kWord,
    kNext,  // after a value
  };
  struct Level {
    char close;      // the bracket that ends it
    bool keyed;      // it has keys
    size_t members;  // so far
  };

  JsonStep BeginItem(char c, std::string* out);
  JsonStep BeginValue(char c, std::string* out);
  JsonStep StepKey(char c, std::string* out);
  JsonStep StepQuote(char c, std::string* out);
  JsonStep StepQuotes(char c, std::string* out);
  JsonStep StepWord(char c, std::string* out);
  JsonStep StepNext(char c, std::string* out);
  void StepString(char c, std::string* out);
  void StepEscape(char c, std::string* out);
  void StepDigits(char c, std::string* out);
  void StepGemmaString(char c, std::string* out);
  void AddCode(uint32_t code, std::string* out);
  void AddText(std::string_view text, std::string* out);
  void BeginString(char quote);
  void EndString(std::string* out);
  void EndWord(std::string* out);
  void AddKey(std::string_view key, std::string* out);
  void Separate(std::string* out);
  bool Push(char c, std::string* out);
  JsonStep Close(char c, std::string* out);
  std::string WordJson(std::string_view word) const;
  bool in_arguments() const { return levels_.size() == 1; }
  bool python() const { return form_ == ArgumentForm::kPython; }

  ArgumentForm form_;
  OrderedJson parameters_;
  std::vector<std::string> properties_;  // names, in their order
  State state_ = State::kOpen;
  std::vector<Level> levels_;
  std::string key_;   // of the argument
  std::string text_;  // a word or a key so far, or what may be a quotation mark
  int depth_ = 0;     // brackets open in a word
  // These describe the string that is open:
  char quote_ = '\0';
  bool triple_ = false;
  bool raw_ = false;  // without escapes
  bool is_key_ = false;
  bool unquoted_ = false;  // it has ended, but for its closing quotation mark
  int quotes_ = 0;         // quotation marks in a row
  bool escape_ = false;
  int digits_ = 0;  // of an escape that are still missing
  int base_ = 16;
  uint32_t code_ = 0;
  uint32_t lead_ = 0;  // the first half of a surrogate pair
};

// Returns a JSON value as a literal of this form.
std::string LiteralText(ArgumentForm form, const OrderedJson& value);
// Returns the members of a JSON object as arguments, without brackets around them.
std::string ArgumentsText(ArgumentForm form, const OrderedJson& object);

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOOLS_LITERAL_READER_H_
