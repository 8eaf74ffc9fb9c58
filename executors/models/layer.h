// The layers of decoders. A layer is a mixer (softmax attention, a gated delta rule, a short
// convolution or Mamba-2) and a feed-forward network, or only one of the two, each of one of
// several kinds. A kind says which linears read its input, so that whatever precedes it makes the
// input in the forms that these want, and computes itself by ops; nothing outside it asks which
// kind it is.
#ifndef MILLRACE_EXECUTORS_MODELS_LAYER_H_
#define MILLRACE_EXECUTORS_MODELS_LAYER_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "executors/decoder_ops.h"

namespace millrace {

// The input of the next part, which is the residual: normed, unless it has no norm, in the forms
// that the linears that read it want. `readers` points into the model.
struct NextInput {
  std::optional<NormId> norm;
  Consumers readers;
};

// Each kind of a part has
//   Consumers inputs() const;
//     the linears that read its input, which live as long as the part
//   LinearInput Run(DecoderOps& ops, int32_t layer, LinearInput x, const Addend& addend,
//                   Residual& residual, const NextInput& next) const;
//     computes the part of x, adds to the residual what `addend` makes of it, and returns the input
//     that `next` describes; refuses the layer if `ops` has none of the kind's.

// Softmax attention (formats/model/layer_config.h: SoftmaxAttention).
struct SoftmaxMixer {
  AttentionSpec spec;
  LinearId qkv{};
  std::optional<HeadNorms> norms;
  LinearId output{};

  Consumers inputs() const { return {&qkv, 1}; }
  LinearInput Run(DecoderOps& ops, int32_t layer, LinearInput x, const Addend& addend,
                  Residual& residual, const NextInput& next) const;
};

// A gated delta rule (formats/model/layer_config.h: GatedDelta).
struct GatedDeltaMixer {
  GatedDeltaSpec spec;
  GatedDeltaWeights weights;
  std::vector<LinearId> readers;  // the weights'
  LinearId output{};

  Consumers inputs() const { return readers; }
  LinearInput Run(DecoderOps& ops, int32_t layer, LinearInput x, const Addend& addend,
                  Residual& residual, const NextInput& next) const;
};

// A gated short convolution (formats/model/layer_config.h: ShortConvolution).
struct ShortConvolutionMixer {
  ShortConvolutionSpec spec;
  LinearId projection{};
  LinearId output{};

  Consumers inputs() const { return {&projection, 1}; }
  LinearInput Run(DecoderOps& ops, int32_t layer, LinearInput x, const Addend& addend,
                  Residual& residual, const NextInput& next) const;
};

// A Mamba-2 mixer (formats/model/layer_config.h: Mamba2).
struct Mamba2Mixer {
  Mamba2Spec spec;
  LinearId projection{};
  LinearId output{};

  Consumers inputs() const { return {&projection, 1}; }
  LinearInput Run(DecoderOps& ops, int32_t layer, LinearInput x, const Addend& addend,
                  Residual& residual, const NextInput& next) const;
};

// A feed-forward network that is no mixture, with a gate unless its function has none.
struct GatedNetwork {
  LinearId gate_up{};
  LinearId down{};
  GateFunction function{};

  Consumers inputs() const { return {&gate_up, 1}; }
  LinearInput Run(DecoderOps& ops, int32_t layer, LinearInput x, const Addend& addend,
                  Residual& residual, const NextInput& next) const;
};

// A mixture of experts.
struct MixtureNetwork {
  MixtureWeights weights;
  MixtureSpec spec;
  std::vector<LinearId> readers;  // the router, the experts and the shared expert

  Consumers inputs() const { return readers; }
  LinearInput Run(DecoderOps& ops, int32_t layer, LinearInput x, const Addend& addend,
                  Residual& residual, const NextInput& next) const;
};

using Mixer = std::variant<SoftmaxMixer, GatedDeltaMixer, ShortConvolutionMixer, Mamba2Mixer>;
using FeedForward = std::variant<GatedNetwork, MixtureNetwork>;

// A part with its norms: of the residual before it, and (in `addend`) of what it adds.
template <typename Kinds>
struct LayerPart {
  std::optional<NormId> norm;
  Kinds kind;
  Addend addend;

  NextInput input() const {
    return {norm, std::visit([](const auto& one) { return one.inputs(); }, kind)};
  }
  LinearInput Run(DecoderOps& ops, int32_t layer, LinearInput x, Residual& residual,
                  const NextInput& next) const {
    return std::visit(
        [&](const auto& one) { return one.Run(ops, layer, std::move(x), addend, residual, next); },
        kind);
  }
};

// At least one of the parts is there.
struct DecoderLayer {
  std::optional<LayerPart<Mixer>> mixer;
  std::optional<LayerPart<FeedForward>> feed_forward;

  NextInput input() const { return mixer.has_value() ? mixer->input() : feed_forward->input(); }
  LinearInput Run(DecoderOps& ops, int32_t layer, LinearInput x, Residual& residual,
                  const NextInput& next) const;
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_MODELS_LAYER_H_
