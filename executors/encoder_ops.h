// The words that an encoder is written in (models/bert.cc) beside those of a decoder (ops.h).
#ifndef MILLRACE_EXECUTORS_ENCODER_OPS_H_
#define MILLRACE_EXECUTORS_ENCODER_OPS_H_

#include <string>

#include "absl/status/statusor.h"
#include "executors/ops.h"
#include "formats/model_config.h"

namespace millrace {

class EncoderPlacer : public WeightPlacer {
 public:
  // Of a layer norm (arXiv:1607.06450), y = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight +
  // bias: "<name>.weight" and "<name>.bias", [size] each.
  virtual absl::StatusOr<NormId> LayerNorm(const std::string& name, float epsilon) = 0;
};

// Of a text's tokens: their own, their positions', and the first type's, which all of them have.
struct EmbeddingTables {
  EmbeddingId tokens;
  EmbeddingId positions;
  EmbeddingId types;
};

// A step's rows are whole texts, and Pool's results are its output. Norms are LayerNorm's, and
// Ops::Norm is asked for none.
class EncoderOps : public Ops {
 public:
  // The hidden states, [tokens, hidden]: norm(the sum of each token's three embeddings).
  virtual Activation EmbedAll(const EmbeddingTables& tables, NormId norm,
                              const StepInput& input) = 0;

  // hidden = norm(hidden + x * W^T + bias).
  virtual void AddLinear(LinearId weight, const Activation& x, NormId norm, Activation& hidden) = 0;

  // gelu(x * W^T + bias), [tokens, out], in the form that `consumer` wants, with
  // gelu(x) = x / 2 * (1 + erf(x / sqrt(2))) (arXiv:1606.08415).
  virtual Activation GeluLinear(LinearId weight, const Activation& x, LinearId consumer) = 0;

  // An embedding of each row, float32 [rows, hidden]: its hidden states pooled, and divided by
  // their Euclidean length if `normalize`. The executor hands them out.
  virtual void Pool(const Activation& hidden, Pooling pooling, bool normalize,
                    const StepInput& input) = 0;
};

// A model of encoders, as Model (models/model.h) is one of decoders.
class Encoder {
 public:
  virtual ~Encoder() = default;

  // One step, from the input's tokens to its rows' embeddings.
  virtual void Forward(EncoderOps& ops, const StepInput& input) const = 0;
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_ENCODER_OPS_H_
