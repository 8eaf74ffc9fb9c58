// Layers on devices that lack ops for them.
#include "executors/models/layer.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace millrace {
namespace {

// A device that computes nothing, and has the ops that every decoder needs.
class BareOps : public DecoderOps {
 public:
  void BeginStep(const StepInput& /*input*/) override {}
  LinearInput GatedLinear(LinearId /*weight*/, const LinearInput& /*x*/, GateFunction /*f*/,
                          Consumers /*consumers*/) override {
    return std::make_unique<LinearInputBuffer>();
  }
  Residual Embed(EmbeddingId /*table*/, float /*factor*/) override { return {}; }
  LinearInput Norm(std::optional<NormId> /*norm*/, const Residual& /*residual*/,
                   Consumers /*consumers*/) override {
    return std::make_unique<LinearInputBuffer>();
  }
  LinearInput RowLinear(LinearId /*weight*/, LinearInput x, const Addend& /*addend*/,
                        Residual& /*residual*/, std::optional<NormId> /*norm*/,
                        Consumers /*consumers*/) override {
    return x;
  }
  Logits Head(LinearId /*weight*/, const LogitSpec& /*spec*/, const LinearInput& /*x*/) override {
    return {};
  }
  void Sample(const Logits& /*logits*/) override {}
};

class WithAttention : public BareOps, public AttentionOps {
 public:
  Qkv QkvLinear(LinearId /*weight*/, const LinearInput& /*x*/) override { return {}; }
  Query RopeAppend(int32_t /*layer*/, const AttentionSpec& /*spec*/,
                   const std::optional<HeadNorms>& /*norms*/, Qkv /*qkv*/) override {
    return {};
  }
  LinearInput Attention(int32_t /*layer*/, const AttentionSpec& /*spec*/, const Query& /*query*/,
                        Consumers /*consumers*/) override {
    return std::make_unique<LinearInputBuffer>();
  }
};

class WithMixtures : public BareOps, public MixtureOps {
 public:
  LinearInput Mixture(const MixtureWeights& /*weights*/, const MixtureSpec& /*spec*/,
                      const LinearInput& /*x*/, const Addend& /*addend*/, Residual& /*residual*/,
                      std::optional<NormId> /*norm*/, Consumers /*consumers*/) override {
    return std::make_unique<LinearInputBuffer>();
  }
};

class WithRecurrence : public BareOps, public RecurrentOps {
 public:
  LinearInput GatedDelta(int32_t /*layer*/, const GatedDeltaSpec& /*spec*/,
                         const GatedDeltaWeights& /*weights*/, const LinearInput& /*x*/,
                         Consumers /*consumers*/) override {
    return std::make_unique<LinearInputBuffer>();
  }
  LinearInput ShortConvolution(int32_t /*layer*/, const ShortConvolutionSpec& /*spec*/,
                               LinearId /*projection*/, const LinearInput& /*in*/,
                               Consumers /*consumers*/) override {
    return std::make_unique<LinearInputBuffer>();
  }
  LinearInput Mamba2(int32_t /*layer*/, const Mamba2Spec& /*spec*/, LinearId /*projection*/,
                     const LinearInput& /*in*/, Consumers /*consumers*/) override {
    return std::make_unique<LinearInputBuffer>();
  }
};

// Runs layer 3, and returns what the device refuses of it.
template <typename Kinds>
absl::Status Refusal(const Kinds& kind, DecoderOps& ops) {
  const LayerPart<Kinds> part{.norm = std::nullopt, .kind = kind, .addend = {}};
  Residual residual;
  const LinearInput next =
      part.Run(ops, 3, std::make_unique<LinearInputBuffer>(), residual, NextInput{});
  EXPECT_NE(next, nullptr) << "a refused step runs on";
  return ops.TakeStatus();
}

TEST(LayerTest, ADeviceRefusesTheKindsThatItHasNoOpsFor) {
  BareOps bare;
  WithAttention attention;
  WithMixtures mixtures;
  const absl::Status no_attention =
      absl::UnimplementedError("layer 3 has softmax attention, which this device does not compute");
  const absl::Status no_mixtures = absl::UnimplementedError(
      "layer 3 has a mixture of experts, which this device does not compute");
  EXPECT_EQ(Refusal<Mixer>(SoftmaxMixer(), bare), no_attention);
  EXPECT_EQ(Refusal<Mixer>(SoftmaxMixer(), mixtures), no_attention);
  EXPECT_EQ(Refusal<Mixer>(SoftmaxMixer(), attention), absl::OkStatus());
  WithRecurrence recurrence;
  EXPECT_EQ(Refusal<Mixer>(GatedDeltaMixer(), recurrence), absl::OkStatus());
  EXPECT_EQ(Refusal<Mixer>(GatedDeltaMixer(), attention),
            absl::UnimplementedError(
                "layer 3 has a gated delta rule, which this device does not compute"));
  EXPECT_EQ(Refusal<Mixer>(ShortConvolutionMixer(), recurrence), absl::OkStatus());
  EXPECT_EQ(Refusal<Mixer>(ShortConvolutionMixer(), attention),
            absl::UnimplementedError(
                "layer 3 has a short convolution, which this device does not compute"));
  EXPECT_EQ(Refusal<Mixer>(Mamba2Mixer(), recurrence), absl::OkStatus());
  EXPECT_EQ(
      Refusal<Mixer>(Mamba2Mixer(), attention),
      absl::UnimplementedError("layer 3 has a Mamba-2 mixer, which this device does not compute"));
  EXPECT_EQ(Refusal<FeedForward>(MixtureNetwork(), bare), no_mixtures);
  EXPECT_EQ(Refusal<FeedForward>(MixtureNetwork(), attention), no_mixtures);
  EXPECT_EQ(Refusal<FeedForward>(MixtureNetwork(), mixtures), absl::OkStatus());
  EXPECT_EQ(Refusal<FeedForward>(GatedNetwork(), bare), absl::OkStatus());
}

}  // namespace
}  // namespace millrace
