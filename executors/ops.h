// The ops that models are written in: those that decoders (decoder_ops.h) and encoders
// (encoder_ops.h) share.
//
// A family is straight-line code over these ops (see models/decoder.cc). It is the same
// for every device and every tensor-parallel degree: what differs lies behind two interfaces. Where
// the weights live and in which form is the WeightPlacer's business, how an op runs is the Ops'.
// The ops are as large as the fusions that pay: an op that ends in a norm or a gate also produces
// the forms (plain, or quantized with its scales) that the linears which consume it want.
//
// Numbers: what an op computes for a token depends on that token and its own sequence alone, bit
// for bit, whatever else is in the step and however the sequence was cut into steps.
#ifndef MILLRACE_EXECUTORS_OPS_H_
#define MILLRACE_EXECUTORS_OPS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "formats/model/layer_config.h"

namespace millrace {

// Weights as the family names them; each placer numbers its own.
enum class EmbeddingId : int32_t {};
enum class NormId : int32_t {};
enum class LinearId : int32_t {};
enum class VectorId : int32_t {};
enum class PositionBiasId : int32_t {};

// One of `size` ranks of tensor parallelism (arXiv:1909.08053), which hold a share of each large
// weight and run the same ops.
struct RankSpec {
  int rank = 0;
  int size = 1;
  bool expert_parallel = false;  // ranks hold whole experts of a mixture, not a share of each
};

// A rank's share of `total` consecutive things, such as a weight's rows: [begin, begin + count),
// and zeros behind them up to `size`, which is the same on every rank. The shares of all ranks, in
// their order, are everything once.
struct Share {
  int64_t total = 0;
  int64_t begin = 0;
  int64_t count = 0;
  int64_t size = 0;
};

// A rank's share of a linear's weight [out, in]: of the output rows (the product stays divided), or
// of the input columns (the product is a partial sum, see RowLinear).
struct Shard {
  // Shares of consecutive parts of the rows (q, k and v), whose totals are all rows. A part lies
  // within one tensor. Empty: the rank has all rows.
  std::vector<Share> rows;
  std::optional<Share> columns;  // nothing: the rank has all columns
  // Above 1, of one tensor: each part is so many groups of equal size, and the tensor's rows are
  // the first group of each part, then the second of each, and so on. They are placed part by part
  // all the same (Qwen3-Next's q, k, v and gates, of which each key head has a group).
  int64_t groups = 1;
};

// Elements of a weight that share scales, so that no rank holds a part of them.
struct ScaleBlock {
  int64_t rows = 1;
  int64_t columns = 1;
};

// Loads a checkpoint's weights onto a device (a placer; vLLM's weight loaders have this role). A
// model asks for each weight by its GGUF tensor names and gets an id, which it passes to ops. The
// device's placer decides where the weight goes and in which form, and cuts out the rank's share.
// Weights may be read later and on several threads: they are in place when the executor has been
// loaded. Errors name the tensor. formats/families/model_tensors.h has checked the tensors against
// the model's config before, so a tensor that exists belongs to the model.
class WeightPlacer {
 public:
  virtual ~WeightPlacer() = default;

  virtual bool Has(const std::string& name) const = 0;

  // Returns the rank that the weights are placed for.
  virtual RankSpec rank() const = 0;

  // Returns the scale blocks of a linear's weight, in the form in which it is placed.
  virtual absl::StatusOr<ScaleBlock> BlockOf(const std::string& name) const = 0;

  // Places an embedding [vocab, hidden], divided by rows.
  virtual absl::StatusOr<EmbeddingId> Embedding(const std::string& name) = 0;

  // Places a linear [out, in] of the tensors' rows, one tensor after the other (q, k and v become
  // one linear). Beside the weight "x.weight" there may be the bias "x.bias", [out of that tensor],
  // which the op then adds; of several tensors, each may have one or not. It is divided as the rows
  // are; of a linear that is divided by columns, the op adds it once to the sum over the ranks.
  virtual absl::StatusOr<LinearId> Linear(const std::vector<std::string>& names,
                                          const Shard& shard) = 0;

  // Places a weight for CoreOps::GatedLinear, without biases: the gate's [size, in] and then the
  // other factor's (up) of the same shape, as two tensors, or as one of [2 * size, in]. The rank
  // has `share` of each.
  virtual absl::StatusOr<LinearId> GatedLinear(const std::vector<std::string>& names,
                                               const Share& share) = 0;
};

// The output of an op, for the ops that follow it in the same step: [tokens, width], in whatever
// memory and element type the device chose. Each role has a type of its own, so that a mix-up does
// not compile, and each device derives its buffers from them. A buffer's memory returns to the
// step's arena when its handle dies, so the same step shape always sees the same addresses (a
// captured graph depends on it).

// The residual stream of a decoder, or the hidden states of an encoder: [tokens, hidden].
class ResidualBuffer {
 public:
  virtual ~ResidualBuffer() = default;
};
using Residual = std::unique_ptr<ResidualBuffer>;

// The input of linears, [tokens, in], in every form that its consumers want: the same values once
// in each form, however many consumers share it.
class LinearInputBuffer {
 public:
  virtual ~LinearInputBuffer() = default;
};
using LinearInput = std::unique_ptr<LinearInputBuffer>;

// The projection to queries, keys and values, [tokens, (heads + 2 kv_heads) * head_size], with all
// of q first, then k, then v. With AttentionSpec::output_gate a head's gate follows its query.
class QkvBuffer {
 public:
  virtual ~QkvBuffer() = default;
};
using Qkv = std::unique_ptr<QkvBuffer>;

// The queries of a layer whose keys and values are in its pages, or are left to Attention to
// append.
class QueryBuffer {
 public:
  virtual ~QueryBuffer() = default;
};
using Query = std::unique_ptr<QueryBuffer>;

// The linears that read an op's output, at least one.
using Consumers = absl::Span<const LinearId>;

// The current step: which tokens at which positions of which sequences. Each executor has its own
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
  int32_t dimensions = 0;  // 0: nothing is rotated
  bool interleaved =
      true;  // pairs (2i, 2i + 1), as GGUF stores Llama; else (i, i + dimensions / 2)
  std::vector<float> factors;  // [dimensions / 2], or empty for all ones (Llama 3.1's scaling)
  float magnitude = 1;         // YaRN's (arXiv:2309.00071) and LongRoPE's (arXiv:2402.13753)

  bool operator==(const RopeSpec&) const = default;
};

// The attention of one layer, with the heads of this rank.
struct AttentionSpec {
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;  // divides num_heads (grouped-query attention, arXiv:2305.13245)
  int32_t head_size = 0;
  float scale = 0;     // of the scores, usually head_size^-0.5
  float soft_cap = 0;  // scores become soft_cap * tanh(scale * q.k / soft_cap), if not 0 (Gemma 2,
                       // arXiv:2408.00118)
  int32_t window = 0;  // a token sees itself and the window - 1 before it, and as many behind it
                       // unless `causal`; 0: all
  bool causal = true;  // false, of an encoder: a token sees all of its row's, which is a whole text
  RopeSpec rope;
  // Each head has the rows of its query and then those of its gate (Qwen3-Next, arXiv:2505.06708):
  // the output is multiplied by the gate's sigmoid.
  bool output_gate = false;
  std::optional<VectorId> sinks;  // [num_heads], SoftmaxAttention::sinks
  // Set, of an encoder: what is added to the scores of head h, by the bucket of the distance (see
  // PositionBucket); h counts from `first_head` of all ranks' on.
  std::optional<PositionBiasId> position_bias;
  int32_t first_head = 0;
};

// A layer's root-mean-square norms of q and of k before they are rotated. Over each head's own
// values, weights [head_size] (Qwen3, arXiv:2505.09388); or `across_heads`, over all heads' values
// together, weights [heads * head_size] and [kv_heads * head_size] (OLMo 2, arXiv:2501.00656).
struct HeadNorms {
  NormId q;
  NormId k;
  bool across_heads = false;
};

class AttentionOps;
class MixtureOps;    // decoder_ops.h
class RecurrentOps;  // decoder_ops.h

// Ops are used by one thread at a time.
//
// An op refuses what its device cannot do: it leaves UNIMPLEMENTED for TakeStatus, with a message
// that names the field, and runs on without harm. An executor finds that out when it loads a model,
// in a dry run that calls every op and computes nothing; a family whose ops do not fit together (a
// linear that its input was not made for) is found out there, too.
//
// The ops of a kind of layer, or part of one, are an interface of their own, which a device has if
// it inherits it. A layer of a kind that its device has no ops for refuses itself.
class CoreOps {
 public:
  virtual ~CoreOps() = default;

  // Return the device's ops of these kinds, null if it has none. The interfaces themselves override
  // them.
  virtual AttentionOps* attention() { return nullptr; }
  virtual MixtureOps* mixtures() { return nullptr; }
  virtual RecurrentOps* recurrent() { return nullptr; }

  // Begins a step and forgets all that was derived from the one before. `input` outlives the step's
  // ops.
  virtual void BeginStep(const StepInput& input) = 0;

  // Returns f(x * Wgate^T, x * Wup^T), [tokens, size]. Where f has no gate, it is f(x * W^T + bias)
  // of a weight that was placed as a linear.
  virtual LinearInput GatedLinear(LinearId weight, const LinearInput& x, GateFunction f,
                                  Consumers consumers) = 0;

  // Returns the first failure since the last call.
  absl::Status TakeStatus() { return std::exchange(status_, absl::OkStatus()); }
  // Records a failure; the first one stays.
  void Fail(absl::Status status) { status_.Update(std::move(status)); }

 protected:
  bool ok() const { return status_.ok(); }

 private:
  absl::Status status_;
};

// The ops of softmax attention.
class AttentionOps : public virtual CoreOps {
 public:
  AttentionOps* attention() final { return this; }

  // Returns x * W^T (+ bias), where W has q's, k's and v's rows.
  virtual Qkv QkvLinear(LinearId weight, const LinearInput& x) = 0;

  // Norms q and k where the layer has `norms`, rotates them by their positions (spec.rope), and
  // appends k and v to the layer's pages. Gates stay as they are.
  virtual Query RopeAppend(int32_t layer, const AttentionSpec& spec,
                           const std::optional<HeadNorms>& norms, Qkv qkv) = 0;

  // Computes attention (causal, unless the spec says otherwise) of each token's q over its
  // sequence's pages, times the gates if there are any, [tokens, heads * head_size]; head h reads
  // kv head h / (heads / kv_heads). Paged as in arXiv:2309.06180.
  virtual LinearInput Attention(int32_t layer, const AttentionSpec& spec, const Query& query,
                                Consumers consumers) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_OPS_H_
