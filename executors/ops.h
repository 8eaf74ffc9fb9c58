// The vocabulary in which a model family is written.
//
// A family is straight-line code over these ops (see models/decoder.cc). It is the same
// for every device and every tensor-parallel degree: what differs lies behind two interfaces. Where
// the weights live and in which form is the WeightPlacer's business, how an op runs is the Ops'.
// The ops are as large as the fusions that pay: an op that ends in a norm or a gate also produces
// the form (plain, or quantized with its scales) that the linear which consumes it wants.
//
// Numbers: what an op computes for a token depends on that token and its own sequence alone, bit
// for bit, whatever else is in the step and however the sequence was cut into steps.
#ifndef MILLRACE_EXECUTORS_OPS_H_
#define MILLRACE_EXECUTORS_OPS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace millrace {

// Weights as the family names them; each placer numbers its own.
enum class EmbeddingId : int32_t {};
enum class NormId : int32_t {};
enum class LinearId : int32_t {};

// How a linear's weight [out, in] is divided among tensor-parallel ranks: by output rows (what it
// produces stays divided), or by input columns (what it produces is a partial sum, see RowLinear).
enum class Shard { kOutput, kInput };

// Of a root-mean-square norm, y = x / sqrt(mean(x^2) + epsilon) * (offset + weight).
struct NormSpec {
  float epsilon = 0;
  float offset = 0;  // 1 where a checkpoint holds what is added to one
};

// Takes tensors out of a checkpoint, by their GGUF names, to where and how the device wants them.
// The work itself may run later and on several threads: it is done when the executor's loading is.
// Errors name the tensor. Which tensors there are was checked against the model's config before
// (formats/model_tensors.h), so a tensor that is there is meant.
class WeightPlacer {
 public:
  virtual ~WeightPlacer() = default;

  virtual bool Has(const std::string& name) const = 0;

  // [vocab, hidden]
  virtual absl::StatusOr<EmbeddingId> Embedding(const std::string& name) = 0;

  // [size]: a norm's weight.
  virtual absl::StatusOr<NormId> Norm(const std::string& name, const NormSpec& spec) = 0;

  // [out, in]: the tensors' rows, one tensor after the other (q, k and v become one linear). Beside
  // the weight "x.weight" there may be the bias "x.bias", [out of that tensor], which Ops::Linear
  // then adds; of several tensors, each may have one or not. With Shard::kInput a decoder has none.
  virtual absl::StatusOr<LinearId> Linear(const std::vector<std::string>& names, Shard shard) = 0;

  // For Ops::GatedLinear, without biases: the gate's [size, in] and then the other factor's (up) of
  // the same shape, as two tensors, or as one of [2 * size, in].
  virtual absl::StatusOr<LinearId> GatedLinear(const std::vector<std::string>& names) = 0;

  // [vocab, hidden], for Ops::Head: keeps its precision where the layers' linears are quantized.
  virtual absl::StatusOr<LinearId> Head(const std::string& name) = 0;
};

// The output of an op, for the ops that follow in the same step: [tokens, width], in whatever
// memory and element type the Ops chose. Its memory returns to the step's arena when the handle
// dies, so the same step shape always sees the same addresses (a captured graph depends on it).
class ActivationBuffer {
 public:
  virtual ~ActivationBuffer() = default;
};
using Activation = std::unique_ptr<ActivationBuffer>;

// The step at hand: which tokens at which positions of which sequences. Each executor has its own
// form of it; a family only hands it on.
class StepInput {
 public:
  virtual ~StepInput() = default;
};

// Rotary position embedding (Su et al., arXiv:2104.09864): the pairs (a, b) of a head's first
// `dimensions` values become magnitude * (a cos t - b sin t, b cos t + a sin t), pair i's angle
// t = position * base^(-2i / dimensions) / factors[i]. The head's other values stay as they are.
struct RopeSpec {
  double base = 10000;
  int32_t dimensions = 0;  // 0: nothing is turned
  bool interleaved =
      true;  // pairs (2i, 2i + 1), as GGUF stores Llama; else (i, i + dimensions / 2)
  std::vector<float> factors;  // [dimensions / 2], or empty for all ones (Llama 3.1's scaling)
  float magnitude = 1;         // YaRN's (arXiv:2309.00071) and LongRoPE's (arXiv:2402.13753)

  bool operator==(const RopeSpec&) const = default;
};

// Of one layer. Shapes are the whole model's; a rank works on its share of the heads.
struct AttentionSpec {
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;  // divides num_heads (grouped-query attention, arXiv:2305.13245)
  int32_t head_size = 0;
  float scale = 0;     // of the scores, usually head_size^-0.5
  float soft_cap = 0;  // scores become soft_cap * tanh(scale * q.k / soft_cap), if not 0 (Gemma 2,
                       // arXiv:2408.00118)
  int32_t window = 0;  // a token sees itself and the window - 1 before it; 0: all before it
  bool causal = true;  // false, of an encoder: a token sees all of its row's, which is a whole text
  RopeSpec rope;
};

// Of a layer: root-mean-square norms of q and of k before they are turned. Over each head's own
// values, weights [head_size] (Qwen3, arXiv:2505.09388); or `across_heads`, over all heads' values
// together, weights [heads * head_size] and [kv_heads * head_size] (OLMo 2, arXiv:2501.00656).
struct HeadNorms {
  NormId q;
  NormId k;
  bool across_heads = false;
};

// f of a gated linear: silu(x) = x / (1 + exp(-x)), or GELU as approximated by its tanh,
// x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) (arXiv:1606.08415).
enum class GateFunction { kSilu, kGeluTanh };

// What RowLinear adds to the residual, of its product y: factor * norm(y), or factor * y.
struct Addend {
  std::optional<NormId> norm;
  float factor = 1;
};

// What becomes of a head's products y: factor * y; if soft_cap is not 0, then
// soft_cap * tanh(factor * y / soft_cap).
struct LogitSpec {
  float factor = 1;
  float soft_cap = 0;

  bool operator==(const LogitSpec&) const = default;
};

class Ops {
 public:
  virtual ~Ops() = default;

  // The residual stream, [tokens, hidden]: factor * each token's embedding.
  virtual Activation Embed(EmbeddingId table, float factor, const StepInput& input) = 0;

  // norm(residual), or without a norm the residual itself, in the form that `consumer` wants.
  virtual Activation Norm(std::optional<NormId> norm, const Activation& residual,
                          LinearId consumer) = 0;

  // x * W^T (+ bias): [tokens, out].
  virtual Activation Linear(LinearId weight, const Activation& x) = 0;

  // residual += what `addend` makes of x * W^T, summed over the ranks; then Norm(norm, residual,
  // consumer). Reduction, residual and norm are one op so that a fused all-reduce changes no
  // family. The norm may be the consumer's own work: the new residual is there when the consumer
  // has run.
  virtual Activation RowLinear(LinearId weight, Activation x, const Addend& addend,
                               Activation& residual, std::optional<NormId> norm,
                               LinearId consumer) = 0;

  // f(x * Wgate^T) * (x * Wup^T), [tokens, size], in the form that `consumer` wants.
  virtual Activation GatedLinear(LinearId weight, const Activation& x, GateFunction f,
                                 LinearId consumer) = 0;

  // Of qkv, [tokens, (heads + 2 kv_heads) * head_size] with all of q, then k, then v: norms q and k
  // where the layer has `norms`, turns them by their positions (spec.rope), and appends k and v to
  // the layer's pages. An executor may leave it to the Attention of what it leaves in `qkv`.
  virtual void RopeAppend(int32_t layer, const AttentionSpec& spec,
                          const std::optional<HeadNorms>& norms, Activation& qkv,
                          const StepInput& input) = 0;

  // Attention (causal, unless the spec says otherwise) of each token's q over its sequence's pages,
  // [tokens, heads * head_size], in the form that `consumer` wants; head h reads kv head h / (heads
  // / kv_heads). Paged as in arXiv:2309.06180.
  virtual Activation Attention(int32_t layer, const AttentionSpec& spec, const Activation& qkv,
                               const StepInput& input, LinearId consumer) = 0;

  // The logits, float32 [wanted positions, vocab], of the positions that the step wants them of:
  // what `spec` makes of x * W^T, x being the final norm's output for all tokens. The handle may
  // stand for logits that Sample computes, some positions at a time: a prompt's log-probabilities
  // want those of thousands.
  virtual Activation Head(LinearId weight, const LogitSpec& spec, const Activation& x,
                          const StepInput& input) = 0;

  // Samples or scores each wanted position; the executor hands the tokens out.
  virtual void Sample(const Activation& logits, const StepInput& input) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_OPS_H_
