// Tokens to text, as they come.
#ifndef MILLRACE_SERVER_TEXT_DETOKENIZER_H_
#define MILLRACE_SERVER_TEXT_DETOKENIZER_H_

#include <string>

#include "absl/types/span.h"
#include "scheduler/sampling_params.h"
#include "server/text/tokenizer.h"

namespace millrace {

// Never gives out half a character. All that Add and Flush return, joined, is Decode of all tokens,
// however they were split: each part of their bytes that is no UTF-8 becomes one U+FFFD, as the
// Unicode standard recommends (and Python and Rust do): the longest beginning of a character, or 1
// byte.
class Detokenizer {
 public:
  // `tokenizer` must outlive this. skip_special leaves special tokens out of the text.
  Detokenizer(const Tokenizer* tokenizer, bool skip_special)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}

  // The text that is whole now; at most 3 bytes are held back.
  std::string Add(Token token);
  // The end of the text: what was held back is no character any more.
  std::string Flush();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string held_;  // the beginning of a character
};

std::string Decode(const Tokenizer& tokenizer, absl::Span<const Token> tokens, bool skip_special);

}  // namespace millrace

#endif  // MILLRACE_SERVER_TEXT_DETOKENIZER_H_
