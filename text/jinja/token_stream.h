// A cursor over a template's tokens, shared by the parsers of statements and of expressions.
#ifndef MILLRACE_TEXT_JINJA_TOKEN_STREAM_H_
#define MILLRACE_TEXT_JINJA_TOKEN_STREAM_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace millrace::jinja {

class TokenStream {
 public:
  // `tokens` ends with kEnd. `max_depth` bounds how deep statements and expressions nest.
  TokenStream(std::vector<Token> tokens, int max_depth)
      : tokens_(std::move(tokens)), max_depth_(max_depth) {}

  const Token& Peek(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  // Returns the present token and moves on, but never past kEnd.
  const Token& Next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  int line() const { return Peek().line; }
  int max_depth() const { return max_depth_; }

  bool SeesOperator(std::string_view text) const { return Peek().Is(TokenKind::kOperator, text); }
  bool SeesName(std::string_view text) const { return Peek().Is(TokenKind::kName, text); }
  // Passes the token if it is that one.
  bool TakeOperator(std::string_view text) { return SeesOperator(text) && (Next(), true); }
  bool TakeName(std::string_view text) { return SeesName(text) && (Next(), true); }

  absl::Status Expect(TokenKind kind);
  absl::Status ExpectOperator(std::string_view text);
  absl::StatusOr<std::string> ExpectName(std::string_view what);

  // Return an error at the present token, or at a line.
  absl::Status Error(std::string_view message) const { return ErrorAt(line(), message); }
  static absl::Status ErrorAt(int line, std::string_view message);
  absl::Status Unsupported(std::string_view what) const;
  absl::Status Unexpected() const;

  // Enters a nested statement or expression; an error if that is too deep. `Leave` undoes it.
  absl::Status Enter();
  void Leave() { --depth_; }
  absl::Status CheckDepth(int depth) const;

  // The present token stands in a branch that may never run: unknown filters and tests are
  // no error there. Jinja has it so, and templates for several engines ask which one they are in.
  bool in_branch = false;
  // The implicit variables that the macro around the present token names.
  MacroUses uses;

 private:
  const std::vector<Token> tokens_;
  const int max_depth_;
  size_t at_ = 0;
  int depth_ = 0;
};

// Leaves at the end of a scope.
class Nesting {
 public:
  explicit Nesting(TokenStream& stream) : stream_(stream), status_(stream.Enter()) {}
  ~Nesting() { stream_.Leave(); }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;
  const absl::Status& status() const { return status_; }

 private:
  TokenStream& stream_;
  const absl::Status status_;
};

}  // namespace millrace::jinja

#endif  // MILLRACE_TEXT_JINJA_TOKEN_STREAM_H_
