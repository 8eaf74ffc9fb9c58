#include "executors/models/olmo2.h"

#include <utility>
#include <vector>

#include "base/status.h"
#include "executors/models/parts.h"

namespace millrace {
namespace {

struct Layer {
  AttentionSpec spec;
  AttentionWeights attention;
  Addend attention_addend;
  FeedForwardWeights ffn;
  Addend ffn_addend;
};

struct Olmo2 : Model {
  void Forward(Ops& ops, const StepInput& input) const override {
    Activation residual = ops.Embed(ends.embedding, ends.embedding_factor, input);
    Activation x = ops.Norm(std::nullopt, residual, layers[0].attention.qkv);
    for (size_t i = 0; i < layers.size(); ++i) {
      const Layer& layer = layers[i];
      const int32_t index = static_cast<int32_t>(i);
      Activation qkv = ops.Linear(layer.attention.qkv, x);
      ops.RopeAppend(index, layer.spec, layer.attention.norms, qkv, input);
      x = ops.Attention(index, layer.spec, qkv, input, layer.attention.output);
      x = ops.RowLinear(layer.attention.output, std::move(x), layer.attention_addend, residual,
                        std::nullopt, layer.ffn.gate_up);
      x = ops.GatedLinear(layer.ffn.gate_up, x, GateFunction::kSilu, layer.ffn.down);
      const bool last = i + 1 == layers.size();
      x = ops.RowLinear(layer.ffn.down, std::move(x), layer.ffn_addend, residual,
                        last ? std::optional<NormId>(ends.output_norm) : std::nullopt,
                        last ? ends.head : layers[i + 1].attention.qkv);
    }
    ops.Sample(ops.Head(ends.head, ends.logits, x, input), input);
  }

  Ends ends;
  std::vector<Layer> layers;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> LoadOlmo2(const ModelConfig& config, int max_model_len,
                                                 WeightPlacer& placer) {
  auto model = std::make_unique<Olmo2>();
  PartLoader parts(config, placer);
  MILLRACE_ASSIGN_OR_RETURN(model->ends, parts.OutsideLayers());
  for (AttentionSpec& spec : AttentionSpecs(config, max_model_len)) {
    const int i = static_cast<int>(model->layers.size());
    Layer& layer = model->layers.emplace_back();
    layer.spec = std::move(spec);
    MILLRACE_ASSIGN_OR_RETURN(layer.attention, parts.Attention(i));
    MILLRACE_ASSIGN_OR_RETURN(layer.attention_addend.norm, parts.Norm(i, "post_attention_norm"));
    MILLRACE_ASSIGN_OR_RETURN(layer.ffn, parts.FeedForward(i));
    MILLRACE_ASSIGN_OR_RETURN(layer.ffn_addend.norm, parts.Norm(i, "post_ffw_norm"));
  }
  return model;
}

}  // namespace millrace
