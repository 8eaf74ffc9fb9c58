// The ops that only encoders use. models/bert.cc calls them and those of ops.h.
#ifndef MILLRACE_EXECUTORS_ENCODER_OPS_H_
#define MILLRACE_EXECUTORS_ENCODER_OPS_H_

#include <string>

#include "absl/status/statusor.h"
#include "executors/ops.h"
#include "formats/model_config.h"

namespace millrace {

class EncoderPlacer : public virtual WeightPlacer {
 public:
  // Places a layer norm (arXiv:1607.06450), y = (x - mean(x)) / sqrt(variance(x) + epsilon) *
  // weight + bias: "<name>.weight" and "<name>.bias", [size] each.
  virtual absl::StatusOr<NormId> LayerNorm(const std::string& name, float epsilon) = 0;
};

// The embeddings of a text's tokens: their own, their positions' and their types'.
struct EmbeddingTables {
  EmbeddingId tokens;
  EmbeddingId positions;
  EmbeddingId types;
  int32_t first_position = 0;  // row of position 0
  int32_t num_types = 1;       // tokens of a type beyond them have the first
};

// A step's rows are whole texts, and Pool's results are its output. Norms are layer norms.
class EncoderOps : public virtual CoreOps {
 public:
  // Begins the hidden states: norm(the sum of each token's three embeddings).
  virtual Residual EmbedAll(const EmbeddingTables& tables, NormId norm) = 0;

  // Returns the hidden states as the input of linears.
  virtual LinearInput AsInput(const Residual& hidden, Consumers consumers) = 0;

  // Sets hidden to norm(hidden + x * W^T + bias).
  virtual void AddLinear(LinearId weight, const LinearInput& x, NormId norm, Residual& hidden) = 0;

  // Returns gelu(x * W^T + bias), [tokens, out], with gelu(x) = x / 2 * (1 + erf(x / sqrt(2)))
  // (arXiv:1606.08415).
  virtual LinearInput GeluLinear(LinearId weight, const LinearInput& x, Consumers consumers) = 0;

  // Computes an embedding of each row, float32 [rows, hidden]: its hidden states are pooled, and
  // divided by their Euclidean length if `normalize`. The executor returns the embeddings.
  virtual void Pool(const Residual& hidden, Pooling pooling, bool normalize) = 0;

  // Returns the hidden states of each row's first token, [rows, hidden], as the input of linears.
  virtual LinearInput FirstTokens(const Residual& hidden, Consumers consumers) = 0;

  // Returns tanh(x * W^T + bias), [rows, out].
  virtual LinearInput TanhLinear(LinearId weight, const LinearInput& x, Consumers consumers) = 0;

  // Computes x * W^T + bias, float32 [rows, out]: the executor returns it in place of embeddings.
  virtual void Classify(LinearId weight, const LinearInput& x) = 0;
};

// A model of encoders, as Model (models/model.h) is one of decoders.
class Encoder {
 public:
  virtual ~Encoder() = default;

  // Returns the kv heads of each layer's pages on this rank.
  virtual int32_t kv_heads() const = 0;

  // Computes one step, from the input's tokens to its rows' embeddings.
  virtual void Forward(EncoderOps& ops, const StepInput& input) const = 0;
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_ENCODER_OPS_H_
