#include "server/text/detokenizer.h"

#include "server/text/utf8.h"

namespace millrace {

std::string Detokenizer::Add(Token token) {
  std::string text;
  if (skip_special_ && tokenizer_->IsSpecial(token)) return text;
  held_.append(tokenizer_->TokenBytes(token));
  held_.erase(0, AppendWholeCharacters(held_, &text));
  return text;
}

std::string Detokenizer::Flush() {
  const bool cut = !held_.empty();
  held_.clear();
  return cut ? std::string(kReplacementCharacter) : std::string();
}

std::string Decode(const Tokenizer& tokenizer, absl::Span<const Token> tokens, bool skip_special) {
  Detokenizer detokenizer(&tokenizer, skip_special);
  std::string text;
  for (const Token token : tokens) text += detokenizer.Add(token);
  return text + detokenizer.Flush();
}

}  // namespace millrace
