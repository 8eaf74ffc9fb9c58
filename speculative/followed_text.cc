#include "speculative/followed_text.h"

#include <utility>

namespace millrace {

FollowedText::FollowedText(std::shared_ptr<const SuffixAutomaton> text,
                           SuffixAutomaton::Match match, int32_t next, int32_t common)
    : text_(std::move(text)), match_(match), next_(next), common_(common) {}

FollowedText FollowedText::FromItsBeginning(std::shared_ptr<const SuffixAutomaton> text) {
  return {std::move(text), SuffixAutomaton::Match(), 0, kWhole};
}

FollowedText FollowedText::FromItsEnd(std::shared_ptr<const SuffixAutomaton> text) {
  const SuffixAutomaton::Match match = text->repeated();
  const int32_t next = text->repeated_end();
  return {std::move(text), match, next, match.length};
}

void FollowedText::Append(Token token) {
  text_->Follow(token, match_);
  if (common_ == kWhole && !next().empty() && next().front() == token) {
    ++next_;
    return;
  }
  common_ = match_.length;
  next_ = text_->EndOf(match_);
}

}  // namespace millrace
