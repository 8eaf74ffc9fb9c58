// The layers of a model as plain values: what each one computes, and its numbers.
#ifndef MILLRACE_FORMATS_MODEL_LAYER_CONFIG_H_
#define MILLRACE_FORMATS_MODEL_LAYER_CONFIG_H_

#include <limits>
#include <optional>
#include <variant>

#include "formats/model/rope_config.h"

namespace millrace {

// Which norms q and k pass before their rotation: none, one of each head's values, or one of all
// heads' values together.
enum class QkNorm { kNone, kHead, kWhole };

// Grouped-query attention (arXiv:2305.13245) with a softmax over all scores.
struct SoftmaxAttention {
  int heads = 0;
  int kv_heads = 0;     // divides heads
  int head_size = 0;    // heads * head_size need not be the hidden size
  double scale = 0;     // of the scores, > 0
  double soft_cap = 0;  // of the scores; 0: none
  int window = 0;  // a token sees itself and the window - 1 before it, in encoders as many behind
                   // it, too; 0: all
  std::optional<RopeConfig> rope;  // nothing: q and k are not rotated
  bool qkv_bias = false;
  bool output_bias = false;  // of attn_output
  // Each head has a logit, blk.N.attn_sinks.weight, that joins its softmax's denominator and has no
  // value (gpt-oss; the idea is StreamingLLM's, arXiv:2309.17453).
  bool sinks = false;
  QkNorm qk_norm = QkNorm::kNone;
  bool fused_qkv = false;  // q, k and v are one tensor, blk.N.attn_qkv.weight
  // blk.N.attn_q.weight has for each head the rows of its query and then those of a gate, whose
  // sigmoid the head's output is multiplied by (arXiv:2505.06708).
  bool output_gate = false;
};

// Tokens that the causal convolution of a GatedDelta reads: one and the three before it.
inline constexpr int kConvolutionWidth = 4;
// The most tokens that any layer's causal convolution reads.
inline constexpr int kMaxConvolutionWidth = 8;

// A gated delta rule (Gated DeltaNet, arXiv:2412.06464): a recurrence in place of attention, with a
// state of [key_size, value_size] for each value head. Queries, keys and values pass a causal
// convolution and SiLU; queries and keys are divided by their Euclidean length. Each head's output
// passes a root-mean-square norm, without ModelConfig::norm_offset, and is multiplied by the SiLU
// of a gate. RecurrentOps::GatedDelta (executors/decoder_ops.h) has the formulas.
struct GatedDelta {
  int key_heads = 0;    // of queries, too; divides value_heads
  int value_heads = 0;  // head h reads key head h / (value_heads / key_heads)
  int key_size = 0;     // of a head
  int value_size = 0;
  // True if the tensors are as llama.cpp's converter leaves them: blk.N.ssm_a is -A in place of A's
  // logarithm, and the convolution's weight lacks its dimension of 1.
  bool converted = false;
  // True if value heads are in turns, so that head h reads key head h % key_heads (Qwen3.5's GGUF
  // files).
  bool in_turns = false;
  // One tensor in place of two: blk.N.ssm_in.weight has the rows of q, k, v and the gate, and
  // blk.N.ssm_ba.weight those of beta and alpha, each of them key head by key head (Qwen3-Next).
  bool fused_qkvz = false;
  bool fused_beta_alpha = false;

  // Returns the channels of the convolution: those of queries, keys and values.
  int channels() const { return 2 * key_heads * key_size + value_heads * value_size; }
};

// A gated short convolution (LFM2, arXiv:2511.23404) in place of attention. A linear makes three
// numbers b, c and x for each channel; y = c * convolution(b * x), where the convolution is causal
// and each channel's own, and another linear makes the output of y. Its state is what the
// convolution reads of the tokens before.
struct ShortConvolution {
  int channels = 0;
  int width = 0;      // tokens that the convolution reads, from 2 to kMaxConvolutionWidth
  bool bias = false;  // of both linears and the convolution
  // True if the tensors are as llama.cpp's converter leaves them: the convolution's weight lacks
  // its dimension of 1.
  bool converted = false;
};

// A Mamba-2 mixer (arXiv:2405.21060): a recurrence in place of attention, with a state of
// [state_size, head_size] for each head, which decays by one number for the whole head. One linear
// makes the gate z, the heads' inputs x, b and c of each group of heads, and a step dt for each
// head. x, b and c pass a causal convolution and SiLU. The outputs of a group's heads times
// SiLU of z pass a root-mean-square norm, without ModelConfig::norm_offset. RecurrentOps::Mamba2
// (executors/decoder_ops.h) has the formulas.
struct Mamba2 {
  int heads = 0;
  int head_size = 0;
  int groups = 0;  // divides heads; head h reads b and c of group h / (heads / groups)
  int state_size = 0;
  int width = 0;                  // tokens that the convolution reads, as a ShortConvolution's
  bool convolution_bias = false;  // of blk.N.ssm_conv1d
  bool projection_bias = false;   // of blk.N.ssm_in and blk.N.ssm_out
  double least_step = 0;          // between which dt is, behind its softplus
  double largest_step = std::numeric_limits<double>::infinity();
  // True if the tensors are as llama.cpp's converter leaves them: blk.N.ssm_a is -A in place of A's
  // logarithm, and the convolution's weight lacks its dimension of 1.
  bool converted = false;

  // Returns the channels of x and z, and of the convolution: x's, b's and c's.
  int inner() const { return heads * head_size; }
  int channels() const { return inner() + 2 * groups * state_size; }
};

// How a feed-forward network joins its gate and its up projection. The last has no gate, and there
// is no tensor of one.
enum class GateFunction {
  kSilu,      // silu(gate) * up, with silu(x) = x / (1 + exp(-x))
  kGeluTanh,  // gelu(gate) * up, GELU as approximated by its tanh, x / 2 * (1 + tanh(sqrt(2 / pi) *
              // (x + 0.044715 x^3))) (arXiv:1606.08415)
  kClampedSwish,  // g / (1 + exp(-1.702 g)) * (u + 1), where g is the gate, at most 7, and u is up,
                  // within -7 and 7 (gpt-oss, arXiv:2508.10925)
  kGelu,          // gelu(gate) * up, with gelu(x) = x / 2 * (1 + erf(x / sqrt(2))) (ModernBERT,
                  // arXiv:2412.13663)
  kSquaredRelu,   // max(up, 0)^2 (Primer, arXiv:2109.08668; Nemotron-H, arXiv:2504.03624)
};
inline bool HasGate(GateFunction function) { return function != GateFunction::kSquaredRelu; }

// The function of gate and up, and then down.
struct GatedFeedForward {
  int size = 0;
  GateFunction function = GateFunction::kSilu;
  bool fused_gate_up = false;  // the gate's rows and then up's are one tensor, blk.N.ffn_up.weight
  bool biases = false;         // of gate, up and down
};

// gelu(up) and then down, both with biases (BERT).
struct GeluFeedForward {
  int size = 0;
};

// The router of a mixture. Each token goes to the `chosen` experts (num_experts_per_tok in Hugging
// Face's configs) with the highest scores; of equal scores the expert that comes first is chosen. A
// score is computed from the expert's logit.
struct RouterConfig {
  enum class Scores {
    kSoftmax,  // over the logits of all experts; with `renormalize`, that is the softmax over the
               // logits of the chosen ones (Mixtral, arXiv:2401.04088)
    kSigmoid,  // of each logit (DeepSeek-V3, arXiv:2412.19437)
  };

  int experts = 0;
  int chosen = 0;
  Scores scores = Scores::kSoftmax;
  bool renormalize = false;  // the chosen experts' scores are divided by their sum
  double factor = 1;         // of the scores, after that
  // The experts form `groups` groups of equal size. Only experts of the `chosen_groups` best groups
  // can be chosen; a group's rank is the sum of its two highest scores (DeepSeek-V3; n_group and
  // topk_group).
  int groups = 1;
  int chosen_groups = 1;
  bool bias = false;  // of the logits, blk.N.ffn_gate_inp.bias
  // blk.N.exp_probs_b.bias (Hugging Face: e_score_correction_bias) is added to the scores when
  // experts are chosen, and not to the scores that their outputs are multiplied by.
  bool correction = false;

  bool operator==(const RouterConfig&) const = default;
};

// A mixture of experts (arXiv:1701.06538): the sum of the chosen experts' outputs, each times its
// score. Experts are networks as GatedFeedForward describes them, with tensors of their own:
// blk.N.ffn_gate.E.weight and so on.
struct ExpertsFeedForward {
  int size = 0;  // of an expert
  RouterConfig router;
  GateFunction function = GateFunction::kSilu;
  bool biases = false;  // of each expert's gate, up and down
  // The width of the shared expert, a network that every token passes; 0 for none. With
  // `shared_gate` its output is multiplied by the sigmoid of a linear with one output,
  // blk.N.ffn_gate_inp_shexp.
  int shared_size = 0;
  bool shared_gate = false;
};

// Where a layer norms its two blocks, attention and the feed-forward network.
enum class NormPlacement {
  kPre,       // what a block reads (Llama)
  kOutput,    // what a block adds to the residual (OLMo 2)
  kSandwich,  // both (Gemma, GLM-4)
  kPost,      // the sum of the residual and what a block adds (BERT)
};
inline bool NormsInput(NormPlacement norms) {
  return norms == NormPlacement::kPre || norms == NormPlacement::kSandwich;
}
inline bool NormsOutput(NormPlacement norms) {
  return norms == NormPlacement::kOutput || norms == NormPlacement::kSandwich;
}

// Stands where a layer has no mixer, or no feed-forward network (Nemotron-H, whose layers have one
// part each).
struct Absent {
  static constexpr int size = 0;
};

// A layer has a mixer (attention, or what stands in its place), a feed-forward network, or both.
struct LayerConfig {
  std::variant<SoftmaxAttention, GatedDelta, ShortConvolution, Mamba2, Absent> attention;
  std::variant<GatedFeedForward, GeluFeedForward, ExpertsFeedForward, Absent> feed_forward;
  NormPlacement norms = NormPlacement::kPre;

  bool has_mixer() const { return !std::holds_alternative<Absent>(attention); }
  bool has_feed_forward() const { return !std::holds_alternative<Absent>(feed_forward); }

  // Return alternatives by name, for families, which know their layers. Others visit the variants.
  const SoftmaxAttention& softmax() const { return std::get<SoftmaxAttention>(attention); }
  SoftmaxAttention& softmax() { return std::get<SoftmaxAttention>(attention); }
  // Returns null for a layer of another kind.
  const SoftmaxAttention* FindSoftmax() const { return std::get_if<SoftmaxAttention>(&attention); }
  GatedFeedForward& gated() { return std::get<GatedFeedForward>(feed_forward); }

  // Returns the columns of the feed-forward network's down projection; in a mixture, those of one
  // expert's; 0 without a network.
  int ffn_size() const {
    return std::visit([](const auto& ffn) { return ffn.size; }, feed_forward);
  }
};

}  // namespace millrace

#endif  // MILLRACE_FORMATS_MODEL_LAYER_CONFIG_H_
