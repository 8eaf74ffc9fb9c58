// An answer that is held to a grammar, token by token.
#ifndef MILLRACE_ENGINE_CONSTRAINTS_GUIDED_ANSWER_H_
#define MILLRACE_ENGINE_CONSTRAINTS_GUIDED_ANSWER_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/token.h"
#include "text/grammar/grammar.h"
#include "text/tokenizer/tokenizer.h"

namespace millrace {

// Where the grammar leaves a text no choice (`": {"street": "` after a key), the answer's tokens
// are those that the tokenizer has for it: others would write the same in ways that the model has
// hardly seen. They are known at once, so that they need no step each (SGLang's jump-forward
// decoding, arXiv:2312.07104). The text's last token is left to the model, since it may go on into
// what comes after, unless the answer ends with it.
//
// A copy goes on by itself. Used by one thread at a time.
class GuidedAnswer {
 public:
  // Without a tokenizer no token is forced: each is any that the grammar allows. The tokenizer
  // outlives it.
  GuidedAnswer(GrammarMatcher matcher, const Tokenizer* tokenizer);

  // Moves past a token. False, and nothing has moved: it cannot come next.
  bool Accept(Token token);

  // Returns the tokens that must come next, one after the other, and moves past them. Empty where
  // there is a choice.
  std::vector<Token> TakeForced();
  size_t num_forced() const { return forced_.size(); }

  // Returns the tokens that may come next; errors are those of GrammarMatcher::Mask.
  absl::StatusOr<std::shared_ptr<const TokenMask>> Mask();

  // The answer is complete, and nothing may follow.
  bool finished() const { return forced_.empty() && matcher_.finished(); }

 private:
  void FindForced();

  GrammarMatcher matcher_;  // past the forced tokens
  const Tokenizer* tokenizer_;
  std::deque<Token> forced_;
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_CONSTRAINTS_GUIDED_ANSWER_H_
