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
  return layer.mixer.has_value() ? std::get_if<SoftmaxMixer>(&layer.mixer->kind) : nullptr;
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
      int32_t count = 0;
      if (layer.mixer.has_value()) {
        count =
            std::visit([](const auto& mixer) { return StateHeads(mixer.spec); }, layer.mixer->kind);
      }
      heads.push_back(count);
    }
    return heads;
  }

  void Forward(DecoderOps& ops, const StepInput& input) const override {
    ops.BeginStep(input);
    Residual residual = ops.Embed(ends.embedding, ends.embedding_factor);
    const NextInput first = layers[0].input();
    LinearInput x = ops.Norm(first.norm, residual, first.readers);
    for (size_t i = 0; i < layers.size(); ++i) {
      const bool last = i + 1 == layers.size();
      x = layers[i].Run(ops, static_cast<int32_t>(i), std::move(x), residual,
                        last ? AfterLayers() : layers[i + 1].input());
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
                                           "'s feed-forward network is GELU without a gate; "
                                           "allowed in decoders: gated ones, squared ReLU, and "
                                           "mixtures of them"));
  }
  return absl::OkStatus();
}

absl::Status LoadNorms(const LayerConfig& described, int index, PartLoader& parts,
                       DecoderLayer* layer) {
  auto& [mixer, feed_forward] = *layer;
  if (NormsInput(described.norms)) {
    std::optional<NormId>& first = mixer.has_value() ? mixer->norm : feed_forward->norm;
    MILLRACE_ASSIGN_OR_RETURN(first, parts.Norm(index, "attn_norm"));
    if (mixer.has_value() && feed_forward.has_value()) {
      MILLRACE_ASSIGN_OR_RETURN(feed_forward->norm, parts.Norm(index, "ffn_norm"));
    }
  }
  if (!NormsOutput(described.norms)) return absl::OkStatus();
  if (mixer.has_value()) {
    MILLRACE_ASSIGN_OR_RETURN(mixer->addend.norm, parts.Norm(index, "post_attention_norm"));
  }
  if (feed_forward.has_value()) {
    MILLRACE_ASSIGN_OR_RETURN(feed_forward->addend.norm, parts.Norm(index, "post_ffw_norm"));
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
    if (described.has_mixer()) {
      MILLRACE_ASSIGN_OR_RETURN(Mixer kind, parts.LayerMixer(i, max_model_len));
      layer.mixer = LayerPart<Mixer>{.norm = {}, .kind = std::move(kind), .addend = addend};
    }
    if (described.has_feed_forward()) {
      MILLRACE_ASSIGN_OR_RETURN(FeedForward kind, parts.LayerFeedForward(i));
      layer.feed_forward =
          LayerPart<FeedForward>{.norm = {}, .kind = std::move(kind), .addend = addend};
    }
    MILLRACE_RETURN_IF_ERROR(LoadNorms(described, i, parts, &layer));
  }
  return model;
}

}  // namespace millrace
