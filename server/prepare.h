// From a request as a door built it to a sequence as the scheduler takes it.
#ifndef MILLRACE_SERVER_PREPARE_H_
#define MILLRACE_SERVER_PREPARE_H_

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/block_hash.h"
#include "scheduler/sequence_request.h"
#include "scheduler/step_plan.h"
#include "server/request.h"
#include "server/text/tokenizer.h"

namespace millrace {

// What all of an engine's requests have in common.
struct SequenceDefaults {
  StepLimits limits;
  bool prefix_caching = true;
  BlockHash cache_root{};
  std::vector<Token> end_of_generation;
};

// Everything of the sequence but its id and arrival. `request` is valid, and its seed drawn.
// InvalidArgument, with both numbers: it can never fit.
absl::StatusOr<SequenceRequest> MakeSequence(const GenerateRequest& request,
                                             std::vector<Token> prompt,
                                             const SequenceDefaults& defaults);

// Whether the model has nothing to do: no token is asked for, and no score.
bool NeedsNoModel(const GenerateRequest& request, absl::Span<const Token> prompt);

}  // namespace millrace

#endif  // MILLRACE_SERVER_PREPARE_H_
