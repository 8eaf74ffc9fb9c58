#include "executors/models/decoder.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "executors/models/layer.h"
#include "executors/models/parts.h"

namespace millrace {
namespace {

// Returns the layer's softmax attention, or null.
const SoftmaxMixer* SoftmaxOf(const DecoderLayer& layer) {
  return std::get_if<SoftmaxMixer>(&layer.mixer.kind);
}

// Return the heads of a mixer that have a state.
int32_t StateHeads(const AttentionSpec& spec) { return spec.num_kv_heads; }
int32_t StateHeads(const GatedDeltaSpec& spec) { return spec.value_heads; }
int32_t StateHeads(const ShortConvolutionSpec& spec) { return spec.channels; }
int32_t StateHeads(const Mamba2Spec& spec) { return spec.heads; }

struct Decoder : Model {
  int32_t heads() const override {
    int32_t most = 0;
    for (const DecoderLayer& layer : layers) {
      if (const auto* softmax = SoftmaxOf(layer)) most = std::max(most, softmax->spec.num_heads);
    }
    return most;
  }

  int32_t kv_heads() const override {
    int32_t most = 0;
    for (const DecoderLayer& layer : layers) {
      if (const auto* softmax = SoftmaxOf(layer)) most = std::max(most, softmax->spec.num_kv_heads);
    }
    return most;
  }

  std::vector<int32_t> layer_state_heads() const override {
    std::vector<int32_t> heads;
    for (const DecoderLayer& layer : layers) {
      heads.push_back(
          std::visit([](const auto& mixer) { return StateHeads(mixer.spec); }, layer.mixer.kind));
    }
    return heads;
  }

  void Forward(DecoderOps& ops, const StepInput& input) const override {
    ops.BeginStep(input);
    Residual residual = ops.Embed(ends.embedding, ends.embedding_factor);
    const NextInput first = layers[0].mixer.input();
    LinearInput x = ops.Norm(first.norm, residual, first.readers);
    for (size_t i = 0; i < layers.size(); ++i) {
      const DecoderLayer& layer = layers[i];
      const int32_t index = static_cast<int32_t>(i);
      x = layer.mixer.Run(ops, index, std::move(x), residual, layer.feed_forward.input());
      const bool last = i + 1 == layers.size();
      x = layer.feed_forward.Run(ops, index, std::move(x), residual,
                                 last ? AfterLayers() : layers[i + 1].mixer.input());
    }
    if (pooler.has_value()) {
      return ops.PoolNormed(ends.output_norm, residual, pooler->pooling, pooler->normalize);
    }
    ops.Sample(ops.Head(ends.head, ends.logits, x));
  }

  // A pooler norms the residual itself.
  NextInput AfterLayers() const {
    if (pooler.has_value()) return {};
    return {ends.output_norm, {&ends.head, 1}};
  }

  Ends ends;
  std::vector<DecoderLayer> layers;
  std::optional<PoolerConfig> pooler;  // set: makes embeddings
};

absl::Status CheckLayer(const LayerConfig& layer, int index) {
  if (layer.norms == NormPlacement::kPost) {
    return absl::UnimplementedError(StrCat("layer ", index,
                                           " norms the sum of the residual and what a block adds; "
                                           "allowed in decoders: norms of either"));
  }
  if (std::holds_alternative<GeluFeedForward>(layer.feed_forward)) {
    return absl::UnimplementedError(StrCat("layer ", index,
                                           "'s feed-forward network has no gate; allowed in "
                                           "decoders: gated ones, and mixtures of them"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> LoadDecoder(const ModelConfig& config, int max_model_len,
                                                   DecoderPlacer& placer) {
  auto model = std::make_unique<Decoder>();
  PartLoader parts(config, placer);
  MILLRACE_ASSIGN_OR_RETURN(model->ends, parts.OutsideLayers());
  model->pooler = config.pooler;
  const Addend addend{.factor = static_cast<float>(config.residual_factor)};
  for (int i = 0; i < config.num_layers(); ++i) {
    const LayerConfig& described = config.layers[i];
    MILLRACE_RETURN_IF_ERROR(CheckLayer(described, i));
    DecoderLayer& layer = model->layers.emplace_back();
    LayerPart<Mixer>& mixer = layer.mixer;
    LayerPart<FeedForward>& feed_forward = layer.feed_forward;
    mixer.addend = feed_forward.addend = addend;
    MILLRACE_ASSIGN_OR_RETURN(mixer.kind, parts.LayerMixer(i, max_model_len));
    MILLRACE_ASSIGN_OR_RETURN(feed_forward.kind, parts.LayerFeedForward(i));
    if (NormsInput(described.norms)) {
      MILLRACE_ASSIGN_OR_RETURN(mixer.norm, parts.Norm(i, "attn_norm"));
      MILLRACE_ASSIGN_OR_RETURN(feed_forward.norm, parts.Norm(i, "ffn_norm"));
    }
    if (NormsOutput(described.norms)) {
      MILLRACE_ASSIGN_OR_RETURN(mixer.addend.norm, parts.Norm(i, "post_attention_norm"));
      MILLRACE_ASSIGN_OR_RETURN(feed_forward.addend.norm, parts.Norm(i, "post_ffw_norm"));
    }
  }
  return model;
}

}  // namespace millrace
