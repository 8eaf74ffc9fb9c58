// The ops that only decoders use. models/decoder.cc calls them and those of ops.h.
#ifndef MILLRACE_EXECUTORS_DECODER_OPS_H_
#define MILLRACE_EXECUTORS_DECODER_OPS_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/strings.h"
#include "executors/ops.h"
#include "formats/model/layer_config.h"
#include "formats/model/model_config.h"

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

// The tensors of each expert's linear: [expert][tensor], as Linear takes them.
using ExpertNames = std::vector<std::vector<std::string>>;

// A causal convolution of each channel: a token's sum over its own input and those of the
// width - 1 tokens before it, each times the channel's weight, and the bias.
struct ConvolutionSpec {
  int32_t width = 0;             // at most kMaxConvolutionWidth
  VectorId weights{};            // [width][channels], the oldest token's first
  std::optional<VectorId> bias;  // [channels]
  bool silu = true;              // the result is silu(sum)
};

class DecoderPlacer : public virtual WeightPlacer {
 public:
  // Places a norm's weight, [size].
  virtual absl::StatusOr<NormId> Norm(const std::string& name, const NormSpec& spec) = 0;

  // Places a vector [size] that an op reads as it is, such as attention's sinks; ranks hold a share
  // each.
  virtual absl::StatusOr<VectorId> Vector(const std::string& name, const Share& share) = 0;

  // Places a causal convolution of each channel: `<module>.weight`, [channels, 1, width] or
  // [channels, width], and with `bias` `<module>.bias`, [channels]. They are divided by channels as
  // a linear by rows (Shard::rows). UNIMPLEMENTED on a device without RecurrentOps.
  virtual absl::StatusOr<ConvolutionSpec> Convolution(const std::string& module, bool /*bias*/,
                                                      absl::Span<const Share> /*channels*/) {
    return absl::UnimplementedError(
        StrCat(module, ".weight is of a causal convolution, which this device does not compute"));
  }

  // Places the router for MixtureOps::Mixture. Every rank has all of it.
  virtual absl::StatusOr<LinearId> Router(const RouterNames& names) = 0;

  // Places the linears of a mixture's experts as one, each named as for Linear and GatedLinear. All
  // have one shape; biases (also of gated ones) are allowed. A rank has the whole linears of
  // `experts`, or its share of every expert's.
  virtual absl::StatusOr<LinearId> GatedExperts(const ExpertNames& names, const Share& experts,
                                                const Share& share) = 0;
  virtual absl::StatusOr<LinearId> Experts(const ExpertNames& names, const Share& experts,
                                           const Shard& shard) = 0;

  // Places the vocabulary head [vocab, hidden] for DecoderOps::Head, divided by rows. It keeps its
  // precision where the layers' linears are quantized.
  virtual absl::StatusOr<LinearId> Head(const std::string& name) = 0;
};

// The addend of RowLinear and Mixture: they add to the residual factor * norm(y), or factor * y
// without a norm, where y is their product.
struct Addend {
  std::optional<NormId> norm;
  float factor = 1;
};

// A mixture's weights. All but `down` and `shared->down` read the layer's input. Where its function
// has no gate, `gate_up` are plain linears (CoreOps::GatedLinear).
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

// The ops that every decoder needs.
class DecoderOps : public virtual CoreOps {
 public:
  // Begins the residual stream: factor * each token's embedding.
  virtual Residual Embed(EmbeddingId table, float factor) = 0;

  // Returns norm(residual), or without a norm the residual itself.
  virtual LinearInput Norm(std::optional<NormId> norm, const Residual& residual,
                           Consumers consumers) = 0;

  // Adds to the residual what `addend` makes of x * W^T, summed over the ranks; returns Norm(norm,
  // residual, consumers). Reduction, residual and norm are one op so that a fused all-reduce
  // changes no family. The norm may be the consumer's own work: the new residual is there when the
  // consumer has run.
  virtual LinearInput RowLinear(LinearId weight, LinearInput x, const Addend& addend,
                                Residual& residual, std::optional<NormId> norm,
                                Consumers consumers) = 0;

  // Returns the logits that `spec` makes of x * W^T, where x is the final norm's output for all
  // tokens.
  virtual Logits Head(LinearId weight, const LogitSpec& spec, const LinearInput& x) = 0;

  // Samples or scores each wanted position; the executor hands the tokens out.
  virtual void Sample(const Logits& logits) = 0;

  // Computes an embedding of each row, float32 [rows, hidden], of norm(residual): the mean of its
  // tokens' (kMean), or its last token's (kLast), divided by its Euclidean length if `normalize`.
  // The executor returns the embeddings.
  virtual void PoolNormed(NormId /*norm*/, const Residual& /*residual*/, Pooling /*pooling*/,
                          bool /*normalize*/) {
    Fail(absl::UnimplementedError("embeddings of decoders are not supported on this device"));
  }
};

// The ops of mixtures of experts.
class MixtureOps : public virtual CoreOps {
 public:
  MixtureOps* mixtures() final { return this; }

  // Sends each token of x through the experts that the router chooses for it and, if there is one,
  // the shared expert. y is the sum of the experts' outputs times their scores, the best expert
  // first, and then of the shared expert's output times its gate. Adds to the residual what
  // `addend` makes of y, summed over the ranks; returns Norm(norm, residual, consumers). The router
  // computes in float32. It is one op so that a device may run it as one kernel.
  virtual LinearInput Mixture(const MixtureWeights& weights, const MixtureSpec& spec,
                              const LinearInput& x, const Addend& addend, Residual& residual,
                              std::optional<NormId> norm, Consumers consumers) = 0;
};

// A gated delta rule (GatedDelta in formats/model/layer_config.h) with the heads of this rank.
struct GatedDeltaSpec {
  int32_t key_heads = 0;
  int32_t value_heads = 0;
  int32_t key_size = 0;
  int32_t value_size = 0;
  ConvolutionSpec convolution;  // of q's, k's and v's channels
  VectorId a{};                 // [value_heads]: log(A), or -A if `converted`
  VectorId time_bias{};         // [value_heads]
  NormId norm{};                // of a value head's output, [value_size]
  bool converted = false;       // GatedDelta's
  bool in_turns = false;        // GatedDelta's

  // Returns the key head that a value head reads.
  int32_t KeyHead(int32_t value_head) const {
    return in_turns ? value_head % key_heads : value_head / (value_heads / key_heads);
  }
};

// The linears that read the layer's input: q, k, v and the gate of the output z; and beta and
// alpha, a number for each value head.
struct GatedDeltaWeights {
  LinearId qkvz{};
  LinearId beta_alpha{};
};

// A gated short convolution (ShortConvolution in formats/model/layer_config.h) with the channels of
// this rank.
struct ShortConvolutionSpec {
  int32_t channels = 0;
  ConvolutionSpec convolution;
};

// A Mamba-2 mixer (Mamba2 in formats/model/layer_config.h) with the heads of this rank.
struct Mamba2Spec {
  int32_t heads = 0;
  int32_t head_size = 0;
  int32_t groups = 0;  // divides heads
  int32_t state_size = 0;
  ConvolutionSpec convolution;  // of x's, b's and c's channels
  VectorId a{};                 // [heads]: log(A), or -A if `converted`
  VectorId d{};                 // [heads]
  VectorId time_bias{};         // [heads]
  float least_step = 0;
  float largest_step = 0;
  NormId norm{};            // of the outputs of each group's heads, [heads * head_size]
  int32_t first_group = 0;  // of all ranks' groups, of which there are `all_groups`
  int32_t all_groups = 0;
  bool shares_groups = false;  // other ranks have heads of the same groups
  bool converted = false;      // Mamba2's
};

// The ops of recurrent layers, whose state lies at the sequence's slot. A row that begins at
// position 0 begins with a state of zeros, whatever the slot held before; another goes on from what
// the row before it left.
class RecurrentOps : public virtual CoreOps {
 public:
  RecurrentOps* recurrent() final { return this; }

  // Computes for each token, one after the other:
  //   [q, k, v] = silu(causal convolution of x's q, k and v)
  //   q = q / |q| / sqrt(key_size), k = k / |k|
  //   decay = exp(-A * softplus(alpha + time_bias)), beta = sigmoid(beta)
  //   S = decay * S, S = S + beta * k (v - S^T k)^T, out = S^T q
  //   norm(out) * silu(z)
  // and returns the latter, [tokens, value_heads * value_size]. State and arithmetic are float32.
  virtual LinearInput GatedDelta(int32_t layer, const GatedDeltaSpec& spec,
                                 const GatedDeltaWeights& weights, const LinearInput& x,
                                 Consumers consumers) = 0;

  // Computes [b, c, x] = in * W^T of each token, where W is `projection`, and returns
  // c * convolution(b * x), [tokens, channels]. State and arithmetic are float32.
  virtual LinearInput ShortConvolution(int32_t layer, const ShortConvolutionSpec& spec,
                                       LinearId projection, const LinearInput& in,
                                       Consumers consumers) = 0;

  // Computes [z, x, b, c, dt] = in * W^T of each token, where W is `projection`, and then, one
  // token after the other:
  //   [x, b, c] = silu(causal convolution of x, b and c)
  //   dt = softplus(dt + time_bias), bounded by the least and the largest step
  //   S = exp(-A * dt) * S + b (dt * x)^T, out = S^T c + d * x
  //   norm(out * silu(z))
  // and returns the latter, [tokens, heads * head_size]. Each group of heads has its own b and c,
  // and the norm is of each group by itself. State and arithmetic are float32.
  virtual LinearInput Mamba2(int32_t layer, const Mamba2Spec& spec, LinearId projection,
                             const LinearInput& in, Consumers consumers) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_DECODER_OPS_H_
