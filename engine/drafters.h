// Makes the drafters of requests' sequences.
#ifndef MILLRACE_ENGINE_DRAFTERS_H_
#define MILLRACE_ENGINE_DRAFTERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/types/span.h"
#include "base/tenant_budget.h"
#include "base/token.h"
#include "scheduler/sequence_request.h"
#include "speculative/drafter.h"
#include "speculative/lookup_drafter.h"
#include "speculative/suffix_automaton.h"

namespace millrace {

// Thread-safe; works on the text pool's threads. What it makes may outlive it.
class Drafters {
 public:
  // Bound on the prompts and predictions of all requests alive, as they are prepared for lookups.
  static constexpr size_t kMaxIndexBytes = size_t{512} << 20;

  // `lookup` unset: no sequence has a drafter. `max_draft_tokens` is ModelInfo's.
  Drafters(std::optional<LookupOptions> lookup, int32_t max_draft_tokens,
           size_t max_index_bytes = kMaxIndexBytes);

  // Prepares a predicted answer. Returns null where the tenant's part of the bound is taken:
  // then the prediction is not followed, and the answer is the same.
  std::shared_ptr<const SuffixAutomaton> IndexPrediction(absl::Span<const Token> prediction,
                                                         const std::string& tenant);

  // Makes the drafter of a sequence. `prediction` may be null. Returns null where nothing is
  // drafted: it is off, the model takes no drafts, at most one token is asked for, or memory is
  // short, as above.
  std::shared_ptr<Drafter> Make(const SequenceRequest& sequence,
                                std::shared_ptr<const SuffixAutomaton> prediction,
                                const std::string& tenant);

  // Returns the fewest tokens of a match that counts.
  int32_t min_match() const { return lookup_.value_or(LookupOptions()).min_match; }

 private:
  struct Held;
  std::shared_ptr<const SuffixAutomaton> Hold(std::shared_ptr<const SuffixAutomaton> index,
                                              const std::string& tenant);

  const std::optional<LookupOptions> lookup_;
  const std::shared_ptr<TenantBudget> budget_;
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_DRAFTERS_H_
