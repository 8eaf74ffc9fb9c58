#include "executors/models/llama.h"

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

struct Layer {
  NormId attention_norm;
  LinearId qkv;
  std::optional<HeadNorms> head_norms;
  LinearId attention_output;
  NormId ffn_norm;
  LinearId gate_up;
  LinearId down;
};

struct Llama : Model {
  void Forward(Ops& ops, const StepInput& input) const override {
    Activation residual = ops.Embed(embedding, input);
    Activation x = ops.Norm(layers[0].attention_norm, residual, layers[0].qkv);
    for (size_t i = 0; i < layers.size(); ++i) {
      const Layer& layer = layers[i];
      const int32_t index = static_cast<int32_t>(i);
      Activation qkv = ops.Linear(layer.qkv, x);
      ops.RopeAppend(index, attention, layer.head_norms, qkv, input);
      x = ops.Attention(index, attention, qkv, input, layer.attention_output);
      x = ops.RowLinear(layer.attention_output, std::move(x), residual, layer.ffn_norm,
                        layer.gate_up);
      x = ops.GatedLinear(layer.gate_up, x, GateFunction::kSilu, layer.down);
      const bool last = i + 1 == layers.size();
      x = ops.RowLinear(layer.down, std::move(x), residual,
                        last ? output_norm : layers[i + 1].attention_norm,
                        last ? head : layers[i + 1].qkv);
    }
    ops.Sample(ops.Head(head, x, input), input);
  }

  EmbeddingId embedding;
  AttentionSpec attention;
  std::vector<Layer> layers;
  NormId output_norm;
  LinearId head;
};

absl::StatusOr<Layer> LoadLayer(int index, const ModelConfig& config, WeightPlacer& placer) {
  const float epsilon = static_cast<float>(config.rms_epsilon);
  const auto name = [index](const char* tensor) {
    return StrCat("blk.", index, ".", tensor, ".weight");
  };
  Layer layer;
  MILLRACE_ASSIGN_OR_RETURN(layer.attention_norm, placer.Norm(name("attn_norm"), epsilon));
  MILLRACE_ASSIGN_OR_RETURN(
      layer.qkv, placer.Linear({name("attn_q"), name("attn_k"), name("attn_v")}, Shard::kOutput));
  if (config.qk_norm) {
    layer.head_norms.emplace();
    MILLRACE_ASSIGN_OR_RETURN(layer.head_norms->q, placer.Norm(name("attn_q_norm"), epsilon));
    MILLRACE_ASSIGN_OR_RETURN(layer.head_norms->k, placer.Norm(name("attn_k_norm"), epsilon));
  }
  MILLRACE_ASSIGN_OR_RETURN(layer.attention_output,
                            placer.Linear({name("attn_output")}, Shard::kInput));
  MILLRACE_ASSIGN_OR_RETURN(layer.ffn_norm, placer.Norm(name("ffn_norm"), epsilon));
  MILLRACE_ASSIGN_OR_RETURN(layer.gate_up, placer.GatedLinear(name("ffn_gate"), name("ffn_up")));
  MILLRACE_ASSIGN_OR_RETURN(layer.down, placer.Linear({name("ffn_down")}, Shard::kInput));
  return layer;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> LoadLlama(const ModelConfig& config, WeightPlacer& placer) {
  auto model = std::make_unique<Llama>();
  model->attention = {.num_heads = config.heads,
                      .num_kv_heads = config.kv_heads,
                      .head_size = config.head_size,
                      .scale = 1.0f / std::sqrt(static_cast<float>(config.head_size)),
                      .rope = {.base = static_cast<float>(config.rope_theta),
                               .dimensions = config.rope_dimensions,
                               .interleaved = config.rope_interleaved,
                               .factors = config.rope_factors}};
  MILLRACE_ASSIGN_OR_RETURN(model->embedding, placer.Embedding("token_embd.weight"));
  for (int i = 0; i < config.layers; ++i) {
    MILLRACE_ASSIGN_OR_RETURN(Layer layer, LoadLayer(i, config, placer));
    model->layers.push_back(layer);
  }
  MILLRACE_ASSIGN_OR_RETURN(
      model->output_norm,
      placer.Norm("output_norm.weight", static_cast<float>(config.rms_epsilon)));
  MILLRACE_ASSIGN_OR_RETURN(
      model->head, placer.Head(config.tied_embeddings ? "token_embd.weight" : "output.weight"));
  return model;
}

}  // namespace millrace
