// Turns a request, as an endpoint built it, into a sequence, as the scheduler takes it.
#ifndef MILLRACE_ENGINE_PREPARE_H_
#define MILLRACE_ENGINE_PREPARE_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/request/request.h"
#include "plan/step_plan.h"
#include "scheduler/block_hash.h"
#include "scheduler/sequence_request.h"
#include "text/tokenizer/tokenizer.h"

namespace millrace {

// The values that all of an engine's requests share.
struct SequenceDefaults {
  StepLimits limits;
  bool prefix_caching = true;
  BlockHash cache_root{};
  bool names_salts = false;  // BlockHashes::salt is set
  std::vector<Token> end_of_generation;
};

// Returns the tenant as the scheduler knows it. Null: of none.
TenantShare ShareOf(const Tenant* tenant);

// Returns the hashes by which the prefix cache finds a prompt's blocks; none where it is off.
// Prefixes are found only by who has the same salt as `tenant`, which may be null.
BlockHashes HashesOf(const std::vector<Token>& prompt, const Tenant* tenant,
                     const SequenceDefaults& defaults);

// Makes the first choice's sequence, without its id and arrival. `request` is valid, and its seed
// drawn. OutOfRange, with both numbers: it can never fit.
absl::StatusOr<SequenceRequest> MakeSequence(const GenerateRequest& request,
                                             std::vector<Token> prompt,
                                             const SequenceDefaults& defaults);

// Makes another choice's sequence from the first one's, which alone scores the prompt. Id and
// arrival are the first one's.
SequenceRequest MakeChoice(const SequenceRequest& first, uint32_t choice);

// Returns InvalidArgument for a token that the model does not know: a tokenizer may have more
// tokens than the model.
absl::Status CheckKnown(std::string_view field, const std::vector<Token>& prompt,
                        int32_t vocab_size);

// Returns whether the model has nothing to do: no token is asked for, and no score.
bool NeedsNoModel(const SequenceRequest& sequence);

}  // namespace millrace

#endif  // MILLRACE_ENGINE_PREPARE_H_
