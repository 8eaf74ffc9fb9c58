#include "engine/drafters.h"

#include <algorithm>
#include <utility>

namespace millrace {
namespace {

std::optional<LookupOptions> Bounded(std::optional<LookupOptions> lookup,
                                     int32_t max_draft_tokens) {
  if (!lookup.has_value() || max_draft_tokens == 0) return std::nullopt;
  lookup->max_tokens = std::min(lookup->max_tokens, max_draft_tokens);
  return lookup;
}

}  // namespace

// An index, and its part of the budget.
struct Drafters::Held {
  Held(std::shared_ptr<TenantBudget> budget_in, const std::string& tenant)
      : budget(std::move(budget_in)), share(*budget, tenant) {}

  const std::shared_ptr<TenantBudget> budget;
  TenantBudget::Share share;
  std::shared_ptr<const SuffixAutomaton> index;
};

Drafters::Drafters(std::optional<LookupOptions> lookup, int32_t max_draft_tokens,
                   size_t max_index_bytes)
    : lookup_(Bounded(lookup, max_draft_tokens)),
      budget_(std::make_shared<TenantBudget>("texts to look up", max_index_bytes)) {}

std::shared_ptr<const SuffixAutomaton> Drafters::Hold(std::shared_ptr<const SuffixAutomaton> index,
                                                      const std::string& tenant) {
  auto held = std::make_shared<Held>(budget_, tenant);
  if (!held->share.Take(index->MemoryBytes()).ok()) return nullptr;
  held->index = std::move(index);
  return {held, held->index.get()};
}

std::shared_ptr<const SuffixAutomaton> Drafters::IndexPrediction(absl::Span<const Token> prediction,
                                                                 const std::string& tenant) {
  return Hold(LookupDrafter::IndexPrediction(lookup_.value_or(LookupOptions()), prediction),
              tenant);
}

std::shared_ptr<Drafter> Drafters::Make(const SequenceRequest& sequence,
                                        std::shared_ptr<const SuffixAutomaton> prediction,
                                        const std::string& tenant) {
  if (!lookup_.has_value() || sequence.stop.max_tokens <= 1) return nullptr;
  auto prompt = Hold(LookupDrafter::IndexPrompt(*lookup_, sequence.prompt), tenant);
  if (prompt == nullptr) return nullptr;
  return std::make_shared<LookupDrafter>(*lookup_, std::move(prompt), std::move(prediction));
}

}  // namespace millrace
