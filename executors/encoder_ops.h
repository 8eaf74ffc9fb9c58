// The ops that only encoders use. models/encoder.cc calls them and those of ops.h.
#ifndef MILLRACE_EXECUTORS_ENCODER_OPS_H_
#define MILLRACE_EXECUTORS_ENCODER_OPS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "executors/ops.h"
#include "formats/model/model_config.h"

namespace millrace {

class EncoderPlacer : public virtual WeightPlacer {
 public:
  // Places a layer norm (arXiv:1607.06450), y = (x - mean(x)) / sqrt(variance(x) + epsilon) *
  // weight + bias: "<name>.weight" and, where the model has it, "<name>.bias", [size] each.
  virtual absl::StatusOr<NormId> LayerNorm(const std::string& name, float epsilon) = 0;

  // Places the biases of scores by distance, [buckets, heads]; every rank has all of them.
  virtual absl::StatusOr<PositionBiasId> PositionBias(const std::string& name) = 0;
};

// The embeddings of a text's tokens: their own, and where there are such their positions' and their
// types'.
struct EmbeddingTables {
  EmbeddingId tokens;
  std::optional<EmbeddingId> positions;
  std::optional<EmbeddingId> types;
  int32_t first_position = 0;  // row of position 0
  int32_t num_types = 1;       // tokens of a type beyond them have the first
};

// A linear layer that reads pooled states, and what follows it.
struct HeadLayer {
  LinearId linear{};
  HeadFunction function = HeadFunction::kIdentity;
  std::optional<NormId> norm = std::nullopt;
};

// Returns the bucket of a key `distance` tokens behind the query (before it if negative), of
// `buckets` in all: half of them for each direction, and of those the first half for one distance
// each, the others for distances that grow logarithmically up to 128 (T5, arXiv:1910.10683, 2.1).
int32_t PositionBucket(int32_t distance, int32_t buckets);

// All layers of encoders have softmax attention. A step's rows are whole texts, and Pool's or
// Output's results are its output. Norms are layer norms.
class EncoderOps : public virtual AttentionOps {
 public:
  // Begins the hidden states: norm(the sum of each token's embeddings).
  virtual Residual EmbedAll(const EmbeddingTables& tables, NormId norm) = 0;

  // Returns norm(hidden), or without a norm the hidden states, as the input of linears.
  virtual LinearInput NormInput(std::optional<NormId> norm, const Residual& hidden,
                                Consumers consumers) = 0;

  // Sets hidden to norm(hidden + x * W^T + bias), or without a norm to the sum.
  virtual void AddLinear(LinearId weight, const LinearInput& x, std::optional<NormId> norm,
                         Residual& hidden) = 0;

  // Sets hidden to norm(hidden).
  virtual void NormAll(NormId norm, Residual& hidden) = 0;

  // Returns gelu(x * W^T + bias), [tokens, out], with gelu(x) = x / 2 * (1 + erf(x / sqrt(2)))
  // (arXiv:1606.08415).
  virtual LinearInput GeluLinear(LinearId weight, const LinearInput& x, Consumers consumers) = 0;

  // Computes an embedding of each row, float32 [rows, hidden]: its hidden states are pooled, and
  // divided by their Euclidean length if `normalize`. The executor returns the embeddings.
  virtual void Pool(const Residual& hidden, Pooling pooling, bool normalize) = 0;

  // Returns each row's pooled hidden states, [rows, hidden], as the input of linears.
  virtual LinearInput PoolRows(const Residual& hidden, Pooling pooling, Consumers consumers) = 0;

  // Returns the layer's norm, if it has one, of its function of x * W^T + bias, [rows, out].
  virtual LinearInput RowsLinear(const HeadLayer& layer, const LinearInput& x,
                                 Consumers consumers) = 0;

  // Computes what RowsLinear would return, float32 [rows, out], divided by its Euclidean length if
  // `normalize`: the executor returns it in place of embeddings.
  virtual void Output(const HeadLayer& layer, const LinearInput& x, bool normalize) = 0;
};

// A model of encoders, as Model (models/model.h) is one of decoders.
class Encoder {
 public:
  virtual ~Encoder() = default;

  // Returns the kv heads of each layer's pages on this rank.
  virtual std::vector<int32_t> layer_state_heads() const = 0;

  // Computes one step, from the input's tokens to its rows' embeddings.
  virtual void Forward(EncoderOps& ops, const StepInput& input) const = 0;
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_ENCODER_OPS_H_
