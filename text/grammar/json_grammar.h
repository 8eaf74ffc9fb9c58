// The parts of JSON as grammars: white space, strings, numbers with bounds, any value.
#ifndef MILLRACE_TEXT_GRAMMAR_JSON_GRAMMAR_H_
#define MILLRACE_TEXT_GRAMMAR_JSON_GRAMMAR_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "text/grammar/automaton.h"
#include "text/grammar/json_value.h"
#include "text/grammar/notation.h"
#include "text/grammar/regular.h"

namespace millrace {

// Bounds of a number; Decimal's are exact.
struct NumberBounds {
  std::optional<Decimal> least, most;
  bool above_least = false, below_most = false;  // the bound itself is not allowed
};

class JsonGrammar {
 public:
  JsonGrammar(GrammarBuilder& builder, bool any_whitespace, Notation notation = Notation::kJson);

  GrammarBuilder& builder() { return builder_; }

  // ", " and ": " with their white space, and what may stand inside of a bracket.
  GrammarNode comma() const { return comma_; }
  GrammarNode colon() const { return colon_; }
  // `arguments`: behind the name of an argument of a call.
  GrammarNode colon(bool arguments) {
    return arguments && notation_ == Notation::kPython ? builder_.Literal("=") : colon_;
  }
  GrammarNode space() const { return space_; }

  // A string of `min` to `max` characters, in quotation marks. Characters may be escaped.
  GrammarNode String(uint32_t min, uint32_t max);
  // A string whose inside is of this term, which AnyText(kJsonString) has the form of; in Gemma's
  // notations AnyText(kPlain).
  GrammarNode StringOf(Regular inside);
  // The inside of a key: each character is written in one way alone, but for those beyond ASCII,
  // which may be escaped, as json.dumps does.
  Regular AnyKey();
  // A key without quotation marks.
  Regular AnyName();
  Notation notation() const { return notation_; }
  std::string_view null() const { return python() ? "None" : "null"; }
  std::string_view truth(bool value) const {
    return value ? (python() ? "True" : "true") : (python() ? "False" : "false");
  }
  // A literal: a key, a constant.
  Regular QuotedLiteral(std::string_view text);

  // Numbers as JSON has them, of bounded length: at most 20 digits before the point.
  Regular Integer(const NumberBounds& bounds);
  Regular Number(const NumberBounds& bounds);
  // The numbers, written with a point, that are no integers.
  Regular WithFraction();
  // Restricts a number to multiples of a positive decimal. Nothing: it has too many digits.
  std::optional<Regular> MultipleOf(const Decimal& divisor, const NumberBounds& bounds,
                                    bool integers_only);

  GrammarNode AnyValue();
  GrammarNode AnyObject();
  GrammarNode AnyArray();
  // A constant, in any white space.
  GrammarNode Constant(const JsonValue& value);

  GrammarNode Object(GrammarNode members);  // in its braces
  GrammarNode Array(GrammarNode elements);

 private:
  bool python() const { return notation_ == Notation::kPython; }
  GrammarNode GemmaString(Regular inside);
  Regular Digits(uint32_t min, uint32_t max);
  Regular Magnitude(const NumberBounds& bounds, int fraction_digits);
  Regular AtLeast(const Decimal& bound, bool strict, int fraction_digits);
  Regular AtMost(const Decimal& bound, bool strict, int fraction_digits);
  Regular Signed(const NumberBounds& bounds, int fraction_digits);
  void MakeAny();

  GrammarBuilder& builder_;
  RegularPool& pool_;
  const Notation notation_;
  GrammarNode space_, comma_, colon_;
  Regular character_;  // of a string, escaped or not
  Regular escape_;     // \u and what follows it, of a character beyond ASCII
  std::optional<GrammarNode> value_, object_, array_;
};

}  // namespace millrace

#endif  // MILLRACE_TEXT_GRAMMAR_JSON_GRAMMAR_H_
