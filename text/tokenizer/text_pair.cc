#include "text/tokenizer/text_pair.h"

#include <algorithm>
#include <cstddef>

namespace millrace {
namespace {

// Cuts both so that together they have at most `most` tokens: the longer one to what the shorter
// one leaves of it, and both to halves where that is not enough; an odd token is the longer one's.
void CutLongest(size_t most, absl::Span<const Token>* first, absl::Span<const Token>* second) {
  if (first->size() + second->size() <= most) return;
  absl::Span<const Token>& shorter = first->size() <= second->size() ? *first : *second;
  absl::Span<const Token>& longer = first->size() <= second->size() ? *second : *first;
  const size_t of_shorter = std::min(shorter.size(), most / 2);
  shorter = shorter.first(of_shorter);
  longer = longer.first(most - of_shorter);
}

}  // namespace

int32_t FrameSize(absl::Span<const PairPart> frame) {
  return static_cast<int32_t>(std::count_if(frame.begin(), frame.end(), [](const PairPart& part) {
    return part.kind == PairPart::Kind::kToken;
  }));
}

PairTokens JoinPair(absl::Span<const PairPart> frame, absl::Span<const Token> first,
                    absl::Span<const Token> second, std::optional<int32_t> most) {
  if (most.has_value()) {
    CutLongest(static_cast<size_t>(std::max(*most - FrameSize(frame), 0)), &first, &second);
  }
  PairTokens pair;
  for (const PairPart& part : frame) {
    const size_t before = pair.tokens.size();
    if (part.kind == PairPart::Kind::kToken) {
      pair.tokens.push_back(part.token);
    } else {
      const auto text = part.kind == PairPart::Kind::kFirstText ? first : second;
      pair.tokens.insert(pair.tokens.end(), text.begin(), text.end());
    }
    if (part.second_type && !pair.second_type.has_value() && pair.tokens.size() > before) {
      pair.second_type = static_cast<int32_t>(before);
    }
  }
  return pair;
}

}  // namespace millrace
