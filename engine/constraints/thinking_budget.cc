#include "engine/constraints/thinking_budget.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/status.h"

namespace millrace {
namespace {

std::shared_ptr<const TokenMask> AllTokens(const GrammarVocabulary& vocabulary) {
  auto mask = std::make_shared<TokenMask>(vocabulary.mask_words(), ~0U);
  if (const int32_t last = vocabulary.mask_size() % 32; last != 0) {
    mask->back() = (1U << last) - 1;
  }
  return mask;
}

}  // namespace

absl::StatusOr<ThinkingBudget> ThinkingBudget::Create(
    ThinkingMarkers markers, int32_t tokens, std::shared_ptr<const GrammarVocabulary> vocabulary) {
  std::vector<GrammarMatcher> closing;
  for (const ThinkingMarkers::Pair& pair : markers.pairs) {
    const GrammarSpec marker{.kind = GrammarSpec::Kind::kMarker, .text = pair.close};
    MILLRACE_ASSIGN_OR_RETURN(auto grammar,
                              Grammar::Compile(pair.forced.parts.empty() ? marker : pair.forced));
    closing.emplace_back(std::move(grammar), vocabulary);
  }
  return ThinkingBudget(std::move(markers), tokens, std::move(closing), std::move(vocabulary));
}

ThinkingBudget::ThinkingBudget(ThinkingMarkers markers, int32_t tokens,
                               std::vector<GrammarMatcher> closing,
                               std::shared_ptr<const GrammarVocabulary> vocabulary)
    : vocabulary_(std::move(vocabulary)),
      all_(AllTokens(*vocabulary_)),
      markers_(std::move(markers)),
      closing_(std::move(closing)),
      inside_(markers_.inside),
      left_(tokens) {
  for (const ThinkingMarkers::Pair& pair : markers_.pairs) {
    longest_ = std::max({longest_, pair.open.size(), pair.close.size()});
  }
  for (const std::string& close : markers_.closes) longest_ = std::max(longest_, close.size());
  ForceWhereSpent();
}

void ThinkingBudget::Extend(std::string_view bytes) {
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    const bool frame =
        byte == GrammarVocabulary::kSpecialOpen || byte == GrammarVocabulary::kSpecialClose;
    if (!frame) tail_ += c;
  }
}

bool ThinkingBudget::Finds(const std::string& marker) {
  if (tail_.find(marker) == std::string::npos) return false;
  tail_.clear();
  return true;
}

void ThinkingBudget::CutTail() {
  if (tail_.size() >= longest_) tail_.erase(0, tail_.size() - longest_ + 1);
}

bool ThinkingBudget::FindsOpening() {
  for (size_t i = 0; i < markers_.pairs.size(); ++i) {
    if (!Finds(markers_.pairs[i].open)) continue;
    opened_ = i;
    return true;
  }
  CutTail();
  return false;
}

bool ThinkingBudget::FindsClosing() {
  const bool found =
      std::any_of(markers_.pairs.begin(), markers_.pairs.end(),
                  [this](const ThinkingMarkers::Pair& pair) { return Finds(pair.close); }) ||
      std::any_of(markers_.closes.begin(), markers_.closes.end(),
                  [this](const std::string& close) { return Finds(close); });
  if (!found) CutTail();
  return found;
}

void ThinkingBudget::ForceWhereSpent() {
  if (inside_ && left_ <= 0) forcing_ = closing_[opened_];
}

// Looks for reasoning at the beginning of the answer, the only place where it may stand.
void ThinkingBudget::FindBeginning() {
  const size_t begin = tail_.find_first_not_of(" \t\r\n");
  if (begin == tail_.npos) return;
  const std::string_view text = std::string_view(tail_).substr(begin);
  bool may_open = false;
  for (size_t i = 0; i < markers_.pairs.size(); ++i) {
    const std::string& open = markers_.pairs[i].open;
    if (text.starts_with(open)) {
      inside_ = true;
      opened_ = i;
      tail_.clear();
      return;
    }
    may_open = may_open || std::string_view(open).starts_with(text);
  }
  over_ = !may_open;
}

void ThinkingBudget::Close() {
  inside_ = false;
  over_ = markers_.once;
  tail_.clear();
}

bool ThinkingBudget::Accept(Token token) {
  if (over_) return true;
  if (forcing_.has_value()) {
    if (!forcing_->Accept(token)) return false;
    if (forcing_->finished()) {
      forcing_.reset();
      Close();
    }
    return true;
  }
  Extend(vocabulary_->Bytes(token));
  if (!inside_ && markers_.once) {
    FindBeginning();
  } else if (!inside_) {
    inside_ = FindsOpening();
  } else if (FindsClosing()) {
    Close();
  } else {
    --left_;
  }
  ForceWhereSpent();
  return true;
}

absl::StatusOr<std::shared_ptr<const TokenMask>> ThinkingBudget::Narrow(
    std::shared_ptr<const TokenMask> mask) {
  if (!forcing_.has_value()) return mask;
  MILLRACE_ASSIGN_OR_RETURN(std::shared_ptr<const TokenMask> closing, forcing_->Mask());
  auto both = std::make_shared<TokenMask>(*mask);
  for (size_t i = 0; i < both->size() && i < closing->size(); ++i) (*both)[i] &= (*closing)[i];
  return both;
}

}  // namespace millrace
