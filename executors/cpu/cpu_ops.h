// The op vocabulary on the CPU: every op is one fork-join over the pool, or two where rows must be
// whole before they can be normed.
#ifndef MILLRACE_EXECUTORS_CPU_CPU_OPS_H_
#define MILLRACE_EXECUTORS_CPU_CPU_OPS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "executors/cpu/activation.h"
#include "executors/cpu/collective.h"
#include "executors/cpu/kernels/kernels.h"
#include "executors/cpu/kv_arena.h"
#include "executors/cpu/weight_placer.h"
#include "executors/decoder_ops.h"
#include "executors/encoder_ops.h"
#include "executors/executor.h"
#include "executors/host/router.h"
#include "executors/host/sampler.h"
#include "executors/host/step_input.h"
#include "executors/host/thread_pool.h"
#include "executors/models/model_state.h"
#include "plan/step_plan.h"

namespace millrace::cpu {

// The memory that ops work in.
struct OpsMemory {
  Memory activations;
  Memory logits;
};

// Tokens that one chunk of a linear works on: their activations stay in a core's cache while the
// chunk's weights pass by, and large steps have chunks enough for every thread.
inline constexpr int kPanelTokens = 128;
// The tiles of a chunk of a gated linear: of gate and up in turns, or half as many of up alone.
inline constexpr int kGateTiles = 4;
inline int GateTiles(GateFunction function) {
  return HasGate(function) ? kGateTiles : kGateTiles / 2;
}

class CpuOps : public DecoderOps, public EncoderOps, public MixtureOps, public RecurrentOps {
 public:
  // Makes ops for a dry run: a step without tokens, which reads and writes no memory. `weights` may
  // be without data. Afterwards TakeStatus says what the ops refused, and token_bytes and
  // WorkspaceBytes what steps take.
  CpuOps(const Kernels& kernels, ThreadPool& pool, const CpuWeights& weights, const KvArena& kv);

  // Makes ops for sequences of up to `max_length` positions. All references must outlive them.
  // `collective` joins the ranks of divided weights; whole weights need none.
  CpuOps(const Kernels& kernels, ThreadPool& pool, const CpuWeights& weights, const KvArena& kv,
         OpsMemory memory, int max_length, Collective* collective = nullptr);

  // Returns the bytes of the logits of one panel.
  static size_t LogitBytes(int vocab_size);
  // Returns the most bytes that activations have taken for each token of a step. They are the same
  // for every step: each buffer has a row, or a fixed number of them, for each of its tokens, and
  // which buffers there are depends on the model alone. So the largest step takes most.
  size_t token_bytes() const { return step_memory_.arena.peak(); }
  // Returns whether the last step has taken more than there is. Its results are void.
  bool exceeded() const { return step_memory_.exceeded; }
  // Returns the most bytes that steps take beside activations. Wants a dry run, or a step.
  size_t WorkspaceBytes(const StepLimits& limits, int threads, int head_size) const;
  const OpsMemory& memory() const { return memory_; }

  void BeginStep(const StepInput& input) override;

  Residual Embed(EmbeddingId table, float factor) override;
  LinearInput Norm(std::optional<NormId> norm, const Residual& residual,
                   Consumers consumers) override;
  Qkv QkvLinear(LinearId weight, const LinearInput& x) override;
  LinearInput RowLinear(LinearId weight, LinearInput x, const Addend& addend, Residual& residual,
                        std::optional<NormId> norm, Consumers consumers) override;
  LinearInput GatedLinear(LinearId weight, const LinearInput& x, GateFunction f,
                          Consumers consumers) override;
  LinearInput Mixture(const MixtureWeights& weights, const MixtureSpec& spec, const LinearInput& x,
                      const Addend& addend, Residual& residual, std::optional<NormId> norm,
                      Consumers consumers) override;
  Query RopeAppend(int32_t layer, const AttentionSpec& spec, const std::optional<HeadNorms>& norms,
                   Qkv qkv) override;
  LinearInput Attention(int32_t layer, const AttentionSpec& spec, const Query& query,
                        Consumers consumers) override;
  LinearInput GatedDelta(int32_t layer, const GatedDeltaSpec& spec,
                         const GatedDeltaWeights& weights, const LinearInput& x,
                         Consumers consumers) override;
  LinearInput ShortConvolution(int32_t layer, const ShortConvolutionSpec& spec, LinearId projection,
                               const LinearInput& in, Consumers consumers) override;
  LinearInput Mamba2(int32_t layer, const Mamba2Spec& spec, LinearId projection,
                     const LinearInput& in, Consumers consumers) override;
  // Gathers the wanted rows of x; Sample computes their logits, a panel at a time.
  Logits Head(LinearId weight, const LogitSpec& spec, const LinearInput& x) override;
  void Sample(const Logits& logits) override;
  void PoolNormed(NormId norm, const Residual& residual, Pooling pooling, bool normalize) override;

  Residual EmbedAll(const EmbeddingTables& tables, NormId norm) override;
  LinearInput NormInput(std::optional<NormId> norm, const Residual& hidden,
                        Consumers consumers) override;
  void AddLinear(LinearId weight, const LinearInput& x, std::optional<NormId> norm,
                 Residual& hidden) override;
  void NormAll(NormId norm, Residual& hidden) override;
  LinearInput GeluLinear(LinearId weight, const LinearInput& x, Consumers consumers) override;
  void Pool(const Residual& hidden, Pooling pooling, bool normalize) override;
  LinearInput PoolRows(const Residual& hidden, Pooling pooling, Consumers consumers) override;
  LinearInput RowsLinear(const HeadLayer& layer, const LinearInput& x,
                         Consumers consumers) override;
  void Output(const HeadLayer& layer, const LinearInput& x, bool normalize) override;

  // Moves the states of recurrent layers on by the first tokens of the last step's drafts, so many
  // of each row. Until then they are those of the tokens before the drafts.
  void AcceptDrafts(absl::Span<const int32_t> accepted);

  // Returns the tokens of the last Sample, in the order of the input's `samples`, and perhaps older
  // ones after them. Each of several ranks has those that it samples.
  absl::Span<const Sampled> sampled() const { return sampled_; }
  // Returns whether this rank samples the input's sample `index`: ranks take turns.
  bool Samples(int index) const { return index % weights_.rank.size == weights_.rank.rank; }
  // Returns the rank's experts that tokens of the last mixture went to, and how many tokens.
  std::vector<std::pair<int, int>> routed_rows() const;
  // Returns the use of each mixture that a step has run so far, in the order of the layers.
  absl::Span<const MixtureUse> mixture_uses() const { return mixture_uses_; }
  // Returns the embeddings of the last Pool or PoolNormed, [rows, hidden], or what the last
  // Output computed.
  absl::Span<const float> embeddings() const { return embeddings_; }

  // Returns the form of `x` that was made for `consumer`; the first of several
  // (TiledMatrix::inputs).
  const CpuActivation& FormFor(LinearId consumer, const LinearInput& x) {
    return FormsFor(consumer, x)[weights_.Matrix(consumer).inputs[0]];
  }

 private:
  // A step's cosines and sines of each token's position, [tokens][pairs].
  struct Rotations {
    RopeSpec spec;
    std::vector<double> frequencies;
    bool computed = false;  // for the current step
    std::vector<float> cosines;
    std::vector<float> sines;
  };
  struct AttentionTask {
    int row;
    int query;  // the first; token-major, a token's heads of one kv head next to each other
    int count;
  };

  // The biases of scores by distance, [heads][stride]: those of distance 0 at score_stride_.
  struct PositionBiases {
    int heads;
    size_t stride;
    std::vector<float> values;
  };

  struct AttentionStep;
  struct ConvolutionStep;
  struct DeltaStep;
  struct Mamba2Step;
  struct Scratch {
    // Takes memory for sequences of `score_stride` positions.
    Scratch(size_t score_stride, int head_size);
    // Returns the bytes of it, and of what samplers take of a vocabulary.
    static size_t Bytes(size_t score_stride, int head_size, int vocab_size);

    std::vector<float> gate;
    std::vector<float> scores;
    std::vector<float> queries;  // filled up with zeros where 16 does not divide the head size
    std::vector<float> heads;
    float sinks[kMaxQueries];
    const float* biases[kMaxQueries];
    std::vector<float> embedding;
    std::vector<float> ordered;
    std::vector<float> state;  // of a head, as a draft's tokens leave it
    ExpertChooser chooser;
    Sampler sampler;
  };

  // Holds what a recurrent layer is given for the tokens of drafts, until it is known which of them
  // are right.
  struct DraftedLayer {
    std::vector<float> inputs;  // [tokens of drafts][floats]
    size_t floats = 0;
    // Moves the layer's states on by the step's tokens, whose inputs these are.
    std::function<void(const CpuActivation& inputs)> advance;
  };

  // Some of the rows that go through an expert of this rank.
  struct Panel {
    int expert;
    int first;
    int rows;
  };
  // Which rows go where: a token has a slot for each expert that it goes through, [tokens *
  // chosen], and each slot whose expert this rank has is a row. Rows are sorted by experts.
  struct Routes {
    std::vector<RoutedExpert> chosen;  // by slot
    std::vector<int> rows;             // by slot, or kNoRow
    std::vector<int> tokens;           // by row
    std::vector<int> begins;           // the first row of each expert, and the end of all
    std::vector<int> next;             // scratch
    std::vector<Panel> panels;
  };
  static constexpr int kNoRow = -1;

  struct Range {
    int64_t begin;
    int64_t end;
  };

  // The forms of a linear's input, and its columns in the orders of the linear's tiles.
  struct Inputs {
    explicit Inputs(const CpuActivation& x) : forms{&x, &x, &x} {}
    const CpuActivation& operator[](Form form) const { return *forms[static_cast<int>(form)]; }
    const CpuActivation& operator[](const TileFormat& format) const {
      return format.order ? ordered[*format.order] : (*this)[format.input];
    }

    const CpuActivation* forms[3];                  // by Form
    absl::InlinedVector<CpuActivation, 1> ordered;  // by TileFormat::order
  };

  // Returns whether other ranks hold shares of the weights, too.
  bool divided() const { return weights_.rank.size > 1; }
  // Adds the values of all ranks, if the weights are divided.
  void SumRanks(const CpuActivation& x);
  // Reads the row of a table, or zeros where another rank has it: [columns].
  void Lookup(EmbeddingId table, int64_t row, float* out) const;

  int NumRows() const { return static_cast<int>(step_->rows.size()); }
  // Computes a head's layer of the first NumRows() rows of `x`.
  CpuActivation RowsProduct(const HeadLayer& layer, const LinearInput& x);
  // Pools the states of one of the step's rows.
  void PoolRow(const CpuActivation& states, const CpuStepInput::Row& row, Pooling pooling,
               float* out) const;
  // Stores a row of floats, the padding too, as a row of an input, in all of its forms.
  void StoreForms(const CpuActivation& floats, int from, const CpuLinearInput& input, int to) const;

  // Buffers of the step's tokens.
  CpuActivation Take(Form form, int64_t width) {
    return {step_memory_, form, step_memory_.rows, static_cast<int>(width)};
  }
  std::unique_ptr<CpuLinearInput> TakeInput(Consumers consumers, int64_t width);
  // Returns x * W^T (+ bias), in floats.
  CpuActivation Product(LinearId weight, const LinearInput& x);
  // Returns the forms of `x` that were made for `consumer`.
  Inputs FormsFor(LinearId consumer, const LinearInput& x);
  // As FormsFor, but with the columns of x in the order of each of the consumer's tiles. For a
  // mixture's linear, x has routed rows, each in the orders of its expert's tiles.
  Inputs InputsFor(LinearId consumer, const LinearInput& x);
  Inputs RoutedInputsFor(LinearId experts, const LinearInput& x, int chosen);
  // Brings a row of `x` into the orders of a linear's tiles.
  void OrderRow(const TiledMatrix& matrix, int row, int thread, const Inputs& x);
  // Adds what `addend` makes of y, whose values it may change, to the residual.
  void AddToResidual(const Addend& addend, const CpuActivation& y, Residual& residual);
  // Returns the groups of a gated linear's tiles; the last may lack some where there is no gate.
  static int GateGroups(const TiledMatrix& matrix, GateFunction function);
  // Computes the outputs of the tiles from group * GateTiles(function) on, as many, of a gated
  // linear for some rows of x, in all forms of `outs`.
  void GateGroup(LinearId weight, int group, const Inputs& x, Range rows, GateFunction function,
                 absl::Span<const CpuActivation> outs, int thread);
  // Computes the outputs of some tiles for some rows of x; `out` is for the first of those rows.
  static void MultiplyTiles(const TiledMatrix& matrix, Range tiles, const Inputs& x, Range rows,
                            float* out, size_t out_stride, bool add);
  // Returns the tiles of a chunk of work.
  static int64_t ChunkTiles(const TiledMatrix& matrix);
  CpuActivation RouteTokens(const MixtureWeights& weights, const MixtureSpec& spec,
                            const LinearInput& x);
  std::unique_ptr<CpuLinearInput> GatherRoutes(LinearId experts, const LinearInput& x, int chosen);
  std::unique_ptr<CpuLinearInput> GateExperts(const MixtureWeights& weights, GateFunction function,
                                              const LinearInput& x, int chosen);
  CpuActivation LowerExperts(LinearId experts, const LinearInput& x, int chosen);
  // Adds the routes of the current mixture to its use.
  void CountExperts(const MixtureWeights& weights);
  void CombineExperts(const CpuActivation& lowered, int chosen, const CpuActivation& y);
  void AddShared(const MixtureWeights::Shared& shared, const MixtureSpec& spec,
                 const LinearInput& x, const CpuActivation& logits, const CpuActivation& y);
  // Multiplies rows [first_row, first_row + rows) of x; `out` is for the first of them.
  void Gemm(const TiledMatrix& matrix, const Inputs& x, int first_row, int rows, float* out,
            size_t out_stride, bool add);
  void NormRow(NormId id, const float* x, Form form, void* out) const;
  void NormInPlace(NormId id, float* x) const;
  void NormHeads(const HeadNorms& norms, const AttentionSpec& spec, float* heads) const;
  // Norms q and k of all tokens over the heads of all ranks.
  void NormAcrossRanks(const HeadNorms& norms, const AttentionSpec& spec, const CpuActivation& qkv);
  void Append(const float* k, const float* v, int size, int32_t layer, BlockId block, int kv_head,
              int at) const;
  // Returns the tokens of the step's drafts.
  int NumDrafted() const;
  // Keeps `floats` numbers of each of these, which `copy` writes, for AcceptDrafts.
  void KeepDrafted(size_t floats, const std::function<void(int token, float* out)>& copy,
                   std::function<void(const CpuActivation& inputs)> advance);
  // Fills with zeros the first `floats` of a layer's state at the slots of rows that begin their
  // sequences.
  void ClearStates(int32_t layer, int64_t floats);
  // Convolves a token's inputs.
  void Convolve(const ConvolutionStep& step, int token) const;
  // Keeps the row's last inputs of the convolution before its draft for the row that follows.
  void KeepInputs(const ConvolutionStep& step, int row) const;
  // Convolves a token's inputs, norms its queries and keys, and replaces beta and alpha by the
  // factors that they stand for.
  void PrepareDelta(const DeltaStep& step, int token) const;
  // Calls `run` for each head of each row: with its state and the row's tokens before its draft,
  // and then with a copy of the state and the tokens of the draft. Keeps the convolution's inputs.
  void AdvanceStates(const ConvolutionStep& convolution, const HeadStates& states,
                     const std::function<void(int head, float* state, int first, int count)>& run);
  // Runs a head's state through `count` tokens from `first` on.
  void RunDelta(const DeltaStep& step, int head, float* state, int first, int count) const;
  // Does all that for the step's tokens and heads. `products` begins with what the convolution
  // reads, `mixed` takes what it makes, and the layer's output behind the queries and keys.
  void AdvanceDelta(int32_t layer, const GatedDeltaSpec& spec, const CpuActivation& products,
                    const CpuActivation& factors, const CpuActivation& mixed);
  void KeepDraftedDelta(int32_t layer, const GatedDeltaSpec& spec, const CpuActivation& products,
                        const CpuActivation& factors);
  // The same for Mamba-2, of which a token's decays and steps are prepared.
  void PrepareMamba2(const Mamba2Step& step, int token) const;
  void RunMamba2(const Mamba2Step& step, int head, float* state, int first, int count) const;
  void AdvanceMamba2(int32_t layer, const Mamba2Spec& spec, const CpuActivation& products,
                     int first_input, const CpuActivation& mixed);
  void KeepDraftedMamba2(int32_t layer, const Mamba2Spec& spec, const CpuActivation& products);
  void NormMamba2AcrossRanks(const Mamba2Spec& spec, const CpuActivation& mixed);
  const Rotations& RotationsOf(const RopeSpec& rope);
  const float* Biases(const AttentionSpec& spec, int head) const;
  void SpreadBiases();
  void PlanAttention(int group);
  AttentionTile Tile(const AttentionStep& step, int index, Scratch& scratch) const;
  void Attend(const AttentionStep& step, int index, int thread);

  const Kernels& kernels_;
  ThreadPool& pool_;
  const CpuWeights& weights_;
  const KvArena& kv_;
  OpsMemory memory_;
  Collective* collective_ = nullptr;

  // The current step:
  const CpuStepInput* step_ = nullptr;
  StepMemory step_memory_;
  std::vector<Rotations> rotations_;  // one for each way that layers rotate
  std::vector<AttentionTask> attention_tasks_;
  int attention_group_ = 0;  // the query heads of a kv head that they are for; 0: not planned yet

  std::vector<DraftedLayer> drafted_;  // the first num_drafted_layers_ are the step's
  size_t num_drafted_layers_ = 0;
  size_t drafted_floats_ = 0;  // of a token, in all layers
  CpuStepInput accepted_;      // the step of AcceptDrafts

  Routes routes_;            // of the current mixture
  size_t num_mixtures_ = 0;  // that the step has run so far
  std::vector<MixtureUse> mixture_uses_;
  size_t score_stride_ = 0;
  std::vector<PositionBiases> position_biases_;  // by PositionBiasId
  std::vector<Scratch> scratch_;                 // of each thread

  size_t most_chosen_ = 0;           // experts of a token, of all mixtures
  size_t share_stride_ = 0;          // floats of a row of logit_shares_
  std::vector<float> squares_;       // of each token's values, that norms across ranks sum up
  std::vector<float> logit_shares_;  // the rank's part of a panel of logits
  std::vector<Sampled> sampled_;
  std::vector<float> embeddings_;
};

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_CPU_OPS_H_
