// Turns tokens into text as they come.
#ifndef MILLRACE_TEXT_DETOKENIZER_H_
#define MILLRACE_TEXT_DETOKENIZER_H_

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/token.h"
#include "text/tokenizer/tokenizer.h"

namespace millrace {

// Never gives out half a character. All that Add and Flush return, joined, is Decode of all tokens,
// however they were split: each part of their bytes that is no UTF-8 becomes one U+FFFD, as the
// Unicode standard recommends (and Python and Rust do): the longest beginning of a character, or 1
// byte.
class Detokenizer {
 public:
  // `tokenizer` must outlive this. skip_special leaves special tokens out of the text. `follows`:
  // the text goes on from another one, so that its first token keeps the space that a vocabulary
  // with words' spaces leaves out at the start.
  Detokenizer(const Tokenizer* tokenizer, bool skip_special, bool follows = false)
      : tokenizer_(tokenizer),
        skip_special_(skip_special),
        first_(!follows),
        strips_(follows ? 0 : tokenizer->text_ends().strip_at_start) {}

  // Makes the text continue the text of `before`, as Decode gives it: the space that Decode leaves
  // out because its last token ends the text stands at the front of this one. Call before Add.
  void Follow(absl::Span<const Token> before);
  // Shows these special tokens, which are ascending and outlive this, whatever skip_special says.
  void Keep(const std::vector<Token>* kept) { kept_ = kept; }
  // Returns the text that is whole now; the remainder of a character and the space that may be the
  // last one are held back.
  std::string Add(Token token);
  // Ends the text: bytes that were held back are no character any more.
  std::string Flush();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  const std::vector<Token>* kept_ = nullptr;
  bool first_;        // no token has been added
  size_t strips_;     // so many characters may still be left out at the start
  std::string held_;  // the beginning of a character
};

std::string Decode(const Tokenizer& tokenizer, absl::Span<const Token> tokens, bool skip_special);

}  // namespace millrace

#endif  // MILLRACE_TEXT_DETOKENIZER_H_
