#include "engine/constraints/token_bounds.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

void Allow(TokenMask& mask, Token token) {
  const auto word = static_cast<size_t>(token) / 32;
  if (word < mask.size()) mask[word] |= 1U << (token % 32);
}

void Forbid(TokenMask& mask, Token token) {
  const auto word = static_cast<size_t>(token) / 32;
  if (word < mask.size()) mask[word] &= ~(1U << (token % 32));
}

}  // namespace

absl::StatusOr<std::vector<std::vector<Token>>> TokenizeBadWords(
    const Tokenizer& tokenizer, absl::Span<const std::string> words) {
  const EncodeOptions options = {.add_special = false, .parse_special = true};
  std::vector<std::vector<Token>> sequences;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string name = StrCat("bad_words[", i, "]");
    const size_t begin = words[i].find_first_not_of(" \t\n\v\f\r");
    const std::string word = begin == std::string::npos ? "" : words[i].substr(begin);
    absl::StatusOr<std::vector<Token>> alone = tokenizer.Encode(word, options);
    if (!alone.ok()) return Annotate(alone.status(), name);
    if (alone->empty()) {
      return absl::InvalidArgumentError(
          StrCat(name, " has no tokens; allowed: a text of more than white space"));
    }
    absl::StatusOr<std::vector<Token>> within = tokenizer.Encode(" " + word, options);
    if (!within.ok()) return Annotate(within.status(), name);
    const bool another = within->size() == alone->size() && within->front() != alone->front();
    sequences.push_back(*std::move(alone));
    if (another) sequences.push_back(*std::move(within));
  }
  return sequences;
}

TokenBounds::TokenBounds(absl::Span<const Token> allowed, std::vector<std::vector<Token>> forbidden,
                         int32_t vocab_size) {
  auto mask = std::make_shared<TokenMask>((static_cast<size_t>(vocab_size) + 31) / 32,
                                          allowed.empty() ? ~0U : 0U);
  for (const Token token : allowed) Allow(*mask, token);
  if (const int32_t last = vocab_size % 32; last != 0) mask->back() &= (1U << last) - 1;
  std::vector<std::vector<Token>> longer;
  for (std::vector<Token>& sequence : forbidden) {
    if (sequence.size() == 1) {
      Forbid(*mask, sequence.front());
    } else {
      longest_ = std::max(longest_, sequence.size());
      longer.push_back(std::move(sequence));
    }
  }
  always_ = std::move(mask);
  sequences_ = std::make_shared<const std::vector<std::vector<Token>>>(std::move(longer));
}

void TokenBounds::Accept(Token token) {
  if (longest_ == 0) return;
  if (tail_.size() == longest_ - 1) tail_.erase(tail_.begin());
  tail_.push_back(token);
}

std::shared_ptr<const TokenMask> TokenBounds::Mask(const TokenMask* within) const {
  std::shared_ptr<TokenMask> changed;
  const auto change = [&]() -> TokenMask& {
    if (changed == nullptr) changed = std::make_shared<TokenMask>(*always_);
    return *changed;
  };
  if (within != nullptr) {
    TokenMask& mask = change();
    for (size_t i = 0; i < mask.size(); ++i) mask[i] &= i < within->size() ? (*within)[i] : 0;
  }
  for (const std::vector<Token>& sequence : *sequences_) {
    const size_t before = sequence.size() - 1;
    if (before > tail_.size()) continue;
    if (std::equal(sequence.begin(), sequence.end() - 1, tail_.end() - before)) {
      Forbid(change(), sequence.back());
    }
  }
  if (changed == nullptr) return always_;
  return changed;
}

}  // namespace millrace
