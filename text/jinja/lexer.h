// Cuts a template into tokens, with the white-space rules that Hugging Face's transformers sets:
// trim_blocks and lstrip_blocks.
#ifndef MILLRACE_TEXT_JINJA_LEXER_H_
#define MILLRACE_TEXT_JINJA_LEXER_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace millrace::jinja {

enum class TokenKind {
  kText,            // Between the tags, already stripped.
  kStatementBegin,  // {%
  kStatementEnd,    // %}
  kPrintBegin,      // {{
  kPrintEnd,        // }}
  kName,
  kString,  // The text without quotes and escapes.
  kInteger,
  kFloat,
  kOperator,
  kEnd,  // The end of the template: always the last token.
};

struct Token {
  TokenKind kind;
  std::string text;
  int line;  // From 1.

  bool Is(TokenKind of_kind, std::string_view with_text) const {
    return kind == of_kind && text == with_text;
  }
};

// Errors begin with "line N: ".
absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source);

}  // namespace millrace::jinja

#endif  // MILLRACE_TEXT_JINJA_LEXER_H_
