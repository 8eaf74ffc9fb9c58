#include "speculative/lookup_drafter.h"

#include <algorithm>
#include <utility>

namespace millrace {
namespace {

// Until an answer deviates from its prediction, no match counts more.
constexpr int32_t kPredicted = 1 << 30;

}  // namespace

std::shared_ptr<const SuffixAutomaton> LookupDrafter::IndexPrompt(const LookupOptions& options,
                                                                  absl::Span<const Token> prompt) {
  const size_t skipped = prompt.size() - std::min<size_t>(prompt.size(), kMaxPromptTokens);
  return std::make_shared<const SuffixAutomaton>(options.min_match, prompt.subspan(skipped));
}

std::shared_ptr<const SuffixAutomaton> LookupDrafter::IndexPrediction(
    const LookupOptions& options, absl::Span<const Token> prediction) {
  return std::make_shared<const SuffixAutomaton>(options.min_match,
                                                 prediction.subspan(0, kMaxPromptTokens));
}

LookupDrafter::LookupDrafter(const LookupOptions& options,
                             std::shared_ptr<const SuffixAutomaton> prompt,
                             std::shared_ptr<const SuffixAutomaton> prediction)
    : options_(options), answer_(options.min_match) {
  if (prediction != nullptr) {
    sources_.push_back({.text = std::move(prediction), .common = kPredicted});
  }
  const SuffixAutomaton& text = *prompt;
  sources_.push_back({.text = std::move(prompt),
                      .match = text.repeated(),
                      .next = text.repeated_end(),
                      .common = text.repeated().length});
  num_given_ = sources_.size();
}

void LookupDrafter::Source::Append(Token token) {
  text->Follow(token, match);
  const absl::Span<const Token> tokens = text->text();
  if (common == kPredicted && next < static_cast<int32_t>(tokens.size()) && tokens[next] == token) {
    ++next;
    return;
  }
  common = match.length;
  next = text->EndOf(match);
}

void LookupDrafter::Append(absl::Span<const Token> tokens) {
  for (const Token token : tokens) {
    for (Source& source : sources_) source.Append(token);
    answer_.Append(token);
    if (answer_.text().size() < kMaxAnswerTokens) continue;
    // What came before this part is given up.
    sources_.resize(num_given_);
    Source part = {.match = answer_.repeated(),
                   .next = answer_.repeated_end(),
                   .common = answer_.repeated().length};
    part.text = std::make_shared<const SuffixAutomaton>(
        std::exchange(answer_, SuffixAutomaton(options_.min_match)));
    sources_.push_back(std::move(part));
  }
}

std::vector<Token> LookupDrafter::Draft(int32_t most) const {
  absl::Span<const Token> from = answer_.text();
  size_t next = answer_.repeated_end();
  int32_t common = answer_.repeated().length;
  bool is_answer = true;
  for (const Source& source : sources_) {
    const absl::Span<const Token> tokens = source.text->text();
    if (source.common <= common || source.next == static_cast<int32_t>(tokens.size())) continue;
    from = tokens;
    next = source.next;
    common = source.common;
    is_answer = false;
  }
  std::vector<Token> draft;
  if (common < options_.min_match) return draft;
  const auto size = static_cast<size_t>(std::clamp(most, 0, std::min(common, options_.max_tokens)));
  for (; draft.size() < size; ++next) {
    if (next < from.size()) {
      draft.push_back(from[next]);
    } else if (is_answer) {
      draft.push_back(draft[next - from.size()]);  // it repeats itself, and goes on so
    } else {
      break;
    }
  }
  return draft;
}

std::unique_ptr<Drafter> LookupDrafter::Clone() const {
  return std::make_unique<LookupDrafter>(*this);
}

}  // namespace millrace
