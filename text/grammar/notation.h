// The notations in which grammars write values.
#ifndef MILLRACE_TEXT_GRAMMAR_NOTATION_H_
#define MILLRACE_TEXT_GRAMMAR_NOTATION_H_

#include <string_view>

namespace millrace {

enum class Notation {
  kJson,
  // JSON, but for True, False and None; strings may have single quotes where any string is allowed.
  kPython,
  // Without white space: keys are bare, and strings stand as they are between <|"|> and <|"|>, or
  // between <escape> and <escape>.
  kGemma,
  kFunctionGemma,
};

inline bool IsGemma(Notation notation) {
  return notation == Notation::kGemma || notation == Notation::kFunctionGemma;
}

// Returns the text on both sides of a string.
inline std::string_view QuoteOf(Notation notation) {
  if (notation == Notation::kGemma) return "<|\"|>";
  return notation == Notation::kFunctionGemma ? "<escape>" : "\"";
}

}  // namespace millrace

#endif  // MILLRACE_TEXT_GRAMMAR_NOTATION_H_
