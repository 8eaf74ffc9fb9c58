// The words that a decoder is written in (models/decoder.cc) beside those of ops.h.
#ifndef MILLRACE_EXECUTORS_DECODER_OPS_H_
#define MILLRACE_EXECUTORS_DECODER_OPS_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "executors/ops.h"
#include "formats/layer_config.h"

namespace millrace {

// A root-mean-square norm, y = x / sqrt(mean(x^2) + epsilon) * (offset + weight).
struct NormSpec {
  float epsilon = 0;
  float offset = 0;  // 1 where a checkpoint holds what is added to one
  // A rank's elements, of a norm over values that ranks divide (HeadNorms::across_heads): the mean
  // is over the values of all ranks. Of values that several ranks hold, one rank's are `counted`.
  std::optional<Share> share;
  bool counted = true;
};

// The tensors of a mixture's router.
struct RouterNames {
  // [experts, hidden], in float32 if it is of floats, with the logits' bias beside it where there
  // is one.
  std::string weight;
  std::optional<std::string> correction;   // [experts], RouterConfig::correction
  std::optional<std::string> shared_gate;  // [1, hidden], ExpertsFeedForward::shared_gate
};

// The tensors of each expert's linear.
using ExpertNames = std::vector<std::vector<std::string>>;

class DecoderPlacer : public virtual WeightPlacer {
 public:
  // [size]: a norm's weight.
  virtual absl::StatusOr<NormId> Norm(const std::string& name, const NormSpec& spec) = 0;

  // [size], divided: numbers that an op reads as they are, such as attention's sinks.
  virtual absl::StatusOr<VectorId> Vector(const std::string& name, const Share& share) = 0;

  // For DecoderOps::GatedLinear, without biases: the gate's [size, in] and then the other factor's
  // (up) of the same shape, as two tensors, or as one of [2 * size, in]. The rank has `share` of
  // each.
  virtual absl::StatusOr<LinearId> GatedLinear(const std::vector<std::string>& names,
                                               const Share& share) = 0;

  // For DecoderOps::Mixture; every rank has all of it.
  virtual absl::StatusOr<LinearId> Router(const RouterNames& names) = 0;

  // The linears of a mixture's experts, each named as Linear and GatedLinear take it, as one: all
  // have one shape, and their biases (also a gated one's) stand beside them. A rank has the whole
  // linears of `experts`, or its share of every expert's.
  virtual absl::StatusOr<LinearId> GatedExperts(const ExpertNames& names, const Share& experts,
                                                const Share& share) = 0;
  virtual absl::StatusOr<LinearId> Experts(const ExpertNames& names, const Share& experts,
                                           const Shard& shard) = 0;

  // [vocab, hidden], divided by rows, for DecoderOps::Head: keeps its precision where the layers'
  // linears are quantized.
  virtual absl::StatusOr<LinearId> Head(const std::string& name) = 0;
};

// RowLinear adds factor * norm(y) to the residual, y being its product, or factor * y.
struct Addend {
  std::optional<NormId> norm;
  float factor = 1;
};

// A mixture's weights. All but `down` and `shared->down` read the layer's input.
struct MixtureWeights {
  struct Shared {
    LinearId gate_up;
    LinearId down;
    bool gated = false;  // times the sigmoid of the router's last row
  };

  LinearId router;
  LinearId gate_up;
  LinearId down;
  std::optional<Shared> shared;
};

struct MixtureSpec {
  RouterConfig router;
  GateFunction function = GateFunction::kSilu;
};

// A head makes of its products y the logits factor * y, or soft_cap * tanh(factor * y / soft_cap)
// if soft_cap is not 0.
struct LogitSpec {
  float factor = 1;
  float soft_cap = 0;

  bool operator==(const LogitSpec&) const = default;
};

// The logits, float32 [wanted positions, vocab], of the positions that the step wants them of. They
// say which head makes them and how: Sample may compute them, some positions at a time, since a
// prompt's log-probabilities want those of thousands.
class LogitsBuffer {
 public:
  LogitsBuffer(LinearId head, const LogitSpec& spec) : head(head), spec(spec) {}
  virtual ~LogitsBuffer() = default;

  const LinearId head;
  const LogitSpec spec;
};
using Logits = std::unique_ptr<LogitsBuffer>;

class DecoderOps : public virtual CoreOps {
 public:
  // The residual stream: factor * each token's embedding.
  virtual Residual Embed(EmbeddingId table, float factor) = 0;

  // norm(residual), or without a norm the residual itself.
  virtual LinearInput Norm(std::optional<NormId> norm, const Residual& residual,
                           Consumers consumers) = 0;

  // residual += what `addend` makes of x * W^T, summed over the ranks; then Norm(norm, residual,
  // consumers). Reduction, residual and norm are one op so that a fused all-reduce changes no
  // family. The norm may be the consumer's own work: the new residual is there when the consumer
  // has run.
  virtual LinearInput RowLinear(LinearId weight, LinearInput x, const Addend& addend,
                                Residual& residual, std::optional<NormId> norm,
                                Consumers consumers) = 0;

  // f of x * Wgate^T and x * Wup^T, [tokens, size].
  virtual LinearInput GatedLinear(LinearId weight, const LinearInput& x, GateFunction f,
                                  Consumers consumers) = 0;

  // Sends each token of x through the experts that the router chooses for it and, where there is
  // one, the shared network; y is the sum of the experts' outputs times their scores, in the order
  // of the choice, the best first, and then of the shared network's output, times its gate.
  // residual += what `addend` makes of y, summed over the ranks; then Norm(norm, residual,
  // consumers). The router computes in float32. One op, so that a device may run it as one kernel.
  virtual LinearInput Mixture(const MixtureWeights& weights, const MixtureSpec& spec,
                              const LinearInput& x, const Addend& addend, Residual& residual,
                              std::optional<NormId> norm, Consumers consumers) = 0;

  // The logits that `spec` makes of x * W^T, x being the final norm's output for all tokens.
  virtual Logits Head(LinearId weight, const LogitSpec& spec, const LinearInput& x) = 0;

  // Samples or scores each wanted position; the executor hands the tokens out.
  virtual void Sample(const Logits& logits) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_DECODER_OPS_H_
