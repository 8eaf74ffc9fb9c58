#include "executors/models/decoder.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "executors/models/parts.h"

namespace millrace {
namespace {

struct Layer {
  AttentionSpec spec;
  std::optional<NormId> attention_norm;
  AttentionWeights attention;
  Addend attention_addend;
  std::optional<NormId> ffn_norm;
  FeedForward ffn;
  Addend ffn_addend;
};

struct Decoder : Model {
  int32_t heads() const override {
    int32_t most = 0;
    for (const Layer& layer : layers) most = std::max(most, layer.spec.num_heads);
    return most;
  }

  int32_t kv_heads() const override {
    int32_t most = 0;
    for (const Layer& layer : layers) most = std::max(most, layer.spec.num_kv_heads);
    return most;
  }

  void Forward(DecoderOps& ops, const StepInput& input) const override {
    ops.BeginStep(input);
    Residual residual = ops.Embed(ends.embedding, ends.embedding_factor);
    LinearInput x = ops.Norm(layers[0].attention_norm, residual, {layers[0].attention.qkv});
    for (size_t i = 0; i < layers.size(); ++i) {
      const Layer& layer = layers[i];
      const bool last = i + 1 == layers.size();
      const std::optional<NormId> next_norm = !last ? layers[i + 1].attention_norm
                                              : pooler.has_value()
                                                  ? std::nullopt
                                                  : std::optional(ends.output_norm);
      const LinearId next = last ? ends.head : layers[i + 1].attention.qkv;
      const Consumers readers(&next, last && pooler.has_value() ? 0 : 1);
      const int32_t index = static_cast<int32_t>(i);
      Qkv qkv = ops.QkvLinear(layer.attention.qkv, x);
      const Query q = ops.RopeAppend(index, layer.spec, layer.attention.norms, std::move(qkv));
      x = ops.Attention(index, layer.spec, q, {layer.attention.output});
      x = ops.RowLinear(layer.attention.output, std::move(x), layer.attention_addend, residual,
                        layer.ffn_norm, layer.ffn.inputs);
      if (const auto* dense = std::get_if<GatedWeights>(&layer.ffn.weights)) {
        x = ops.GatedLinear(dense->gate_up, x, layer.ffn.function, {dense->down});
        x = ops.RowLinear(dense->down, std::move(x), layer.ffn_addend, residual, next_norm,
                          readers);
      } else {
        const auto& mixture = std::get<Mixture>(layer.ffn.weights);
        x = ops.Mixture(mixture.weights, mixture.spec, x, layer.ffn_addend, residual, next_norm,
                        readers);
      }
    }
    if (pooler.has_value()) {
      return ops.PoolNormed(ends.output_norm, residual, pooler->pooling, pooler->normalize);
    }
    ops.Sample(ops.Head(ends.head, ends.logits, x));
  }

  Ends ends;
  std::vector<Layer> layers;
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
  for (AttentionSpec& spec : AttentionSpecs(config, max_model_len)) {
    const int i = static_cast<int>(model->layers.size());
    const LayerConfig& described = config.layers[i];
    MILLRACE_RETURN_IF_ERROR(CheckLayer(described, i));
    Layer& layer = model->layers.emplace_back();
    layer.spec = std::move(spec);
    layer.attention_addend = layer.ffn_addend = addend;
    MILLRACE_ASSIGN_OR_RETURN(layer.attention, parts.Attention(i, layer.spec));
    MILLRACE_ASSIGN_OR_RETURN(layer.ffn, parts.LayerFeedForward(i));
    if (NormsInput(described.norms)) {
      MILLRACE_ASSIGN_OR_RETURN(layer.attention_norm, parts.Norm(i, "attn_norm"));
      MILLRACE_ASSIGN_OR_RETURN(layer.ffn_norm, parts.Norm(i, "ffn_norm"));
    }
    if (NormsOutput(described.norms)) {
      MILLRACE_ASSIGN_OR_RETURN(layer.attention_addend.norm, parts.Norm(i, "post_attention_norm"));
      MILLRACE_ASSIGN_OR_RETURN(layer.ffn_addend.norm, parts.Norm(i, "post_ffw_norm"));
    }
  }
  return model;
}

}  // namespace millrace
