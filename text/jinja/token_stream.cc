#include "text/jinja/token_stream.h"

#include "base/strings.h"
#include "text/jinja/text.h"

namespace millrace::jinja {
namespace {

std::string Describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kEnd:
      return "end of the template";
    case TokenKind::kText:
      return "text";
    case TokenKind::kStatementBegin:
      return "'{%'";
    case TokenKind::kStatementEnd:
      return "'%}'";
    case TokenKind::kPrintBegin:
      return "'{{'";
    case TokenKind::kPrintEnd:
      return "'}}'";
    case TokenKind::kString:
      return "string";
    default:
      return StrCat("'", token.text.substr(0, 100), "'");
  }
}

}  // namespace

absl::Status TokenStream::Expect(TokenKind kind) {
  if (Peek().kind != kind) return Unexpected();
  Next();
  return absl::OkStatus();
}

absl::Status TokenStream::ExpectOperator(std::string_view text) {
  if (TakeOperator(text)) return absl::OkStatus();
  return Error(StrCat("unexpected ", Describe(Peek()), ", wanted '", text, "'"));
}

absl::StatusOr<std::string> TokenStream::ExpectName(std::string_view what) {
  if (Peek().kind == TokenKind::kName) return Next().text;
  return Error(StrCat("unexpected ", Describe(Peek()), ", wanted ", what));
}

absl::Status TokenStream::ErrorAt(int line, std::string_view message) {
  return absl::InvalidArgumentError(StrCat("line ", line, ": ", message));
}

absl::Status TokenStream::Unsupported(std::string_view what) const {
  return Error(StrCat(what.substr(0, 100), " is not supported"));
}

absl::Status TokenStream::Unexpected() const {
  return Error(StrCat("unexpected ", Describe(Peek())));
}

absl::Status TokenStream::Enter() { return CheckDepth(++depth_); }

absl::Status TokenStream::CheckDepth(int depth) const {
  if (depth <= max_depth_) return absl::OkStatus();
  return Error(StrCat("statements or expressions are nested deeper than ", max_depth_, " levels"));
}

}  // namespace millrace::jinja
