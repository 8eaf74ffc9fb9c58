// From a request as a door built it to a sequence as the scheduler takes it.
#ifndef MILLRACE_SERVER_PREPARE_H_
#define MILLRACE_SERVER_PREPARE_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
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

// Everything of the first choice's sequence but its id and arrival. `request` is valid, and its
// seed drawn. OutOfRange, with both numbers: it can never fit.
absl::StatusOr<SequenceRequest> MakeSequence(const GenerateRequest& request,
                                             std::vector<Token> prompt,
                                             const SequenceDefaults& defaults);

// The same of another choice: the first one alone scores the prompt. Its id and arrival are the
// first one's, too.
SequenceRequest MakeChoice(const SequenceRequest& first, uint32_t choice);

// InvalidArgument: a tokenizer may have tokens that the model does not, of pictures, say.
absl::Status CheckKnown(std::string_view field, const std::vector<Token>& prompt,
                        int32_t vocab_size);

// Whether the model has nothing to do: no token is asked for, and no score.
bool NeedsNoModel(const SequenceRequest& sequence);

}  // namespace millrace

#endif  // MILLRACE_SERVER_PREPARE_H_
