#include "executors/models/decoder.h"

#include <optional>
#include <utility>
#include <vector>

#include "base/status.h"
#include "executors/models/parts.h"

namespace millrace {
namespace {

struct Layer {
  AttentionSpec spec;
  std::optional<NormId> attention_norm;
  AttentionWeights attention;
  Addend attention_addend;
  std::optional<NormId> ffn_norm;
  FeedForwardWeights ffn;
  Addend ffn_addend;
};

struct Decoder : Model {
  void Forward(Ops& ops, const StepInput& input) const override {
    Activation residual = ops.Embed(ends.embedding, ends.embedding_factor, input);
    Activation x = ops.Norm(layers[0].attention_norm, residual, layers[0].attention.qkv);
    for (size_t i = 0; i < layers.size(); ++i) {
      const Layer& layer = layers[i];
      const int32_t index = static_cast<int32_t>(i);
      Activation qkv = ops.Linear(layer.attention.qkv, x);
      ops.RopeAppend(index, layer.spec, layer.attention.norms, qkv, input);
      x = ops.Attention(index, layer.spec, qkv, input, layer.attention.output);
      x = ops.RowLinear(layer.attention.output, std::move(x), layer.attention_addend, residual,
                        layer.ffn_norm, layer.ffn.gate_up);
      x = ops.GatedLinear(layer.ffn.gate_up, x, gate, layer.ffn.down);
      const bool last = i + 1 == layers.size();
      x = ops.RowLinear(layer.ffn.down, std::move(x), layer.ffn_addend, residual,
                        last ? ends.output_norm : layers[i + 1].attention_norm,
                        last ? ends.head : layers[i + 1].attention.qkv);
    }
    ops.Sample(ops.Head(ends.head, ends.logits, x, input), input);
  }

  Ends ends;
  std::vector<Layer> layers;
  GateFunction gate;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> LoadDecoder(const DecoderShape& shape,
                                                   const ModelConfig& config, int max_model_len,
                                                   WeightPlacer& placer) {
  auto model = std::make_unique<Decoder>();
  model->gate = shape.gate;
  PartLoader parts(config, placer);
  MILLRACE_ASSIGN_OR_RETURN(model->ends, parts.OutsideLayers());
  const Addend addend{.factor = static_cast<float>(config.residual_factor)};
  for (AttentionSpec& spec : AttentionSpecs(config, max_model_len)) {
    const int i = static_cast<int>(model->layers.size());
    Layer& layer = model->layers.emplace_back();
    layer.spec = std::move(spec);
    layer.attention_addend = layer.ffn_addend = addend;
    MILLRACE_ASSIGN_OR_RETURN(layer.attention, parts.Attention(i));
    MILLRACE_ASSIGN_OR_RETURN(layer.ffn, parts.FeedForward(i));
    if (shape.norms_before) {
      MILLRACE_ASSIGN_OR_RETURN(layer.attention_norm, parts.Norm(i, "attn_norm"));
      MILLRACE_ASSIGN_OR_RETURN(layer.ffn_norm, parts.Norm(i, "ffn_norm"));
    }
    if (shape.norms_after) {
      MILLRACE_ASSIGN_OR_RETURN(layer.attention_addend.norm, parts.Norm(i, "post_attention_norm"));
      MILLRACE_ASSIGN_OR_RETURN(layer.ffn_addend.norm, parts.Norm(i, "post_ffw_norm"));
    }
  }
  return model;
}

}  // namespace millrace
