#include "text/detokenizer.h"

#include <algorithm>

#include "text/utf8.h"

namespace millrace {

void Detokenizer::Follow(absl::Span<const Token> before) {
  first_ = false;
  strips_ = 0;
  while (!before.empty() && skip_special_ && tokenizer_->IsSpecial(before.back())) {
    before.remove_suffix(1);
  }
  if (before.empty() || !tokenizer_->text_ends().drop_end_space) return;
  if (tokenizer_->TokenBytes(before.back()).ends_with(' ')) held_ = " ";
}

std::string Detokenizer::Add(Token token) {
  std::string text;
  if (skip_special_ && tokenizer_->IsSpecial(token) &&
      (kept_ == nullptr || !std::binary_search(kept_->begin(), kept_->end(), token))) {
    return text;
  }
  held_.append(first_ ? tokenizer_->FirstTokenBytes(token) : tokenizer_->TokenBytes(token));
  first_ = false;
  const TextEnds& ends = tokenizer_->text_ends();
  for (; strips_ > 0 && held_.starts_with(ends.strip); --strips_) held_.erase(0, ends.strip.size());
  if (!ends.strip.starts_with(held_)) strips_ = 0;  // something else stands first
  const bool space = ends.drop_end_space && held_.ends_with(' ');
  if (space) held_.pop_back();
  held_.erase(0, AppendWholeCharacters(held_, &text));
  if (space) held_.push_back(' ');
  return text;
}

std::string Detokenizer::Flush() {
  const bool cut = !held_.empty() && held_ != " ";
  held_.clear();
  return cut ? std::string(kReplacementCharacter) : std::string();
}

std::string Decode(const Tokenizer& tokenizer, absl::Span<const Token> tokens, bool skip_special) {
  Detokenizer detokenizer(&tokenizer, skip_special);
  std::string text;
  for (const Token token : tokens) text += detokenizer.Add(token);
  text += detokenizer.Flush();
  return text;
}

}  // namespace millrace
