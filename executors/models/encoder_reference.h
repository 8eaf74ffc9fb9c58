// For tests of every executor of encoders: tiny twins against what transformers makes of them
// (tests/reference/make_family_reference.py).
#ifndef MILLRACE_EXECUTORS_MODELS_ENCODER_REFERENCE_H_
#define MILLRACE_EXECUTORS_MODELS_ENCODER_REFERENCE_H_

#include <string>
#include <vector>

#include "executors/executor.h"
#include "formats/json/json.h"
#include "formats/twins/family_twins.h"

namespace millrace {

struct EncoderReference {
  std::vector<Token> prompt;
  // By their names: "embedding", and "half_kv_embedding" of keys and values in float16. Of a
  // cross-encoder these are its logit, and "second_type" is StepRow's.
  Json twins;
};

// Reads tests/reference/encoder_reference.json; the program runs in the repository. Ends it on an
// error.
EncoderReference ReadEncoderReference();

// Returns a step with a row for each text, in slots and blocks that no other row uses.
StepPlan TextsPlan(const std::vector<std::vector<Token>>& texts, int block_size, StepId id);

// The texts' embeddings, of one step. Ends the program on an error.
using Embeddings = std::vector<std::vector<float>>;
Embeddings Embed(Executor& executor, const std::vector<std::vector<Token>>& texts, StepId id = 1);
// The same of any step.
Embeddings Embed(Executor& executor, StepPlan plan);

// Returns the largest difference from a list of numbers, over the largest of these.
double EmbeddingError(const std::vector<float>& embedding, const Json& reference);

// A twin that is not what it should be.
struct EncoderMutant {
  FamilyTwin twin;
  TwinFault fault = TwinFault::kNone;
  std::string change;
};
// Returns the twin after each of its mutations and faults, with another pooling, and with another
// length (which a GGUF file does not change).
std::vector<EncoderMutant> EncoderMutants(const FamilyTwin& twin);

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_MODELS_ENCODER_REFERENCE_H_
