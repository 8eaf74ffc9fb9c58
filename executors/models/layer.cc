#include "executors/models/layer.h"

#include <utility>

#include "absl/status/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

// Refuses a layer of a kind that the device has no ops for, and goes on without it.
LinearInput Refuse(const char* kind, DecoderOps& ops, int32_t layer, const Residual& residual,
                   const NextInput& next) {
  ops.Fail(absl::UnimplementedError(
      StrCat("layer ", layer, " has ", kind, ", which this device does not compute")));
  return ops.Norm(next.norm, residual, next.readers);
}

}  // namespace

LinearInput SoftmaxMixer::Run(DecoderOps& ops, int32_t layer, LinearInput x, const Addend& addend,
                              Residual& residual, const NextInput& next) const {
  AttentionOps* const attention = ops.attention();
  if (attention == nullptr) return Refuse("softmax attention", ops, layer, residual, next);
  Qkv product = attention->QkvLinear(qkv, x);
  const Query q = attention->RopeAppend(layer, spec, norms, std::move(product));
  x = attention->Attention(layer, spec, q, {output});
  return ops.RowLinear(output, std::move(x), addend, residual, next.norm, next.readers);
}

LinearInput GatedDeltaMixer::Run(DecoderOps& ops, int32_t layer, LinearInput x,
                                 const Addend& addend, Residual& residual,
                                 const NextInput& next) const {
  RecurrentOps* const recurrent = ops.recurrent();
  if (recurrent == nullptr) return Refuse("a gated delta rule", ops, layer, residual, next);
  x = recurrent->GatedDelta(layer, spec, weights, x, {output});
  return ops.RowLinear(output, std::move(x), addend, residual, next.norm, next.readers);
}

LinearInput ShortConvolutionMixer::Run(DecoderOps& ops, int32_t layer, LinearInput x,
                                       const Addend& addend, Residual& residual,
                                       const NextInput& next) const {
  RecurrentOps* const recurrent = ops.recurrent();
  if (recurrent == nullptr) return Refuse("a short convolution", ops, layer, residual, next);
  x = recurrent->ShortConvolution(layer, spec, projection, x, {output});
  return ops.RowLinear(output, std::move(x), addend, residual, next.norm, next.readers);
}

LinearInput Mamba2Mixer::Run(DecoderOps& ops, int32_t layer, LinearInput x, const Addend& addend,
                             Residual& residual, const NextInput& next) const {
  RecurrentOps* const recurrent = ops.recurrent();
  if (recurrent == nullptr) return Refuse("a Mamba-2 mixer", ops, layer, residual, next);
  x = recurrent->Mamba2(layer, spec, projection, x, {output});
  return ops.RowLinear(output, std::move(x), addend, residual, next.norm, next.readers);
}

LinearInput GatedNetwork::Run(DecoderOps& ops, int32_t /*layer*/, LinearInput x,
                              const Addend& addend, Residual& residual,
                              const NextInput& next) const {
  x = ops.GatedLinear(gate_up, x, function, {down});
  return ops.RowLinear(down, std::move(x), addend, residual, next.norm, next.readers);
}

LinearInput MixtureNetwork::Run(DecoderOps& ops, int32_t layer, LinearInput x, const Addend& addend,
                                Residual& residual, const NextInput& next) const {
  MixtureOps* const mixtures = ops.mixtures();
  if (mixtures == nullptr) return Refuse("a mixture of experts", ops, layer, residual, next);
  return mixtures->Mixture(weights, spec, x, addend, residual, next.norm, next.readers);
}

LinearInput DecoderLayer::Run(DecoderOps& ops, int32_t layer, LinearInput x, Residual& residual,
                              const NextInput& next) const {
  if (mixer.has_value()) {
    x = mixer->Run(ops, layer, std::move(x), residual,
                   feed_forward.has_value() ? feed_forward->input() : next);
  }
  if (!feed_forward.has_value()) return x;
  return feed_forward->Run(ops, layer, std::move(x), residual, next);
}

}  // namespace millrace
