#include "engine/thinking_budget.h"

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
  MILLRACE_ASSIGN_OR_RETURN(
      auto grammar, Grammar::Compile({.kind = GrammarSpec::Kind::kMarker, .text = markers.close}));
  GrammarMatcher closing(std::move(grammar), vocabulary);
  return ThinkingBudget(std::move(markers), tokens, std::move(closing), std::move(vocabulary));
}

ThinkingBudget::ThinkingBudget(ThinkingMarkers markers, int32_t tokens, GrammarMatcher closing,
                               std::shared_ptr<const GrammarVocabulary> vocabulary)
    : vocabulary_(std::move(vocabulary)),
      all_(AllTokens(*vocabulary_)),
      markers_(std::move(markers)),
      closing_(std::move(closing)),
      inside_(markers_.inside),
      left_(tokens) {
  ForceWhereSpent();
}

bool ThinkingBudget::Finds(const std::string& marker, std::string_view bytes) {
  tail_ += bytes;
  if (tail_.find(marker) != std::string::npos) {
    tail_.clear();
    return true;
  }
  if (tail_.size() >= marker.size()) tail_.erase(0, tail_.size() - marker.size() + 1);
  return false;
}

void ThinkingBudget::ForceWhereSpent() {
  if (inside_ && left_ <= 0) forcing_ = closing_;
}

// Looks for reasoning at the beginning of the answer, the only place where it may stand.
void ThinkingBudget::FindBeginning(std::string_view bytes) {
  tail_ += bytes;
  // A special token's name is framed.
  const size_t begin = tail_.find_first_not_of(" \t\r\n\xff");
  if (begin == tail_.npos) return;
  const std::string_view text = std::string_view(tail_).substr(begin);
  if (text.starts_with(markers_.open)) {
    inside_ = true;
    tail_.clear();
  } else if (!std::string_view(markers_.open).starts_with(text)) {
    over_ = true;
  }
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
  const std::string_view bytes = vocabulary_->Bytes(token);
  if (!inside_ && markers_.once) {
    FindBeginning(bytes);
  } else if (!inside_) {
    inside_ = Finds(markers_.open, bytes);
  } else if (Finds(markers_.close, bytes)) {
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
