#include "executors/models/bert.h"

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

struct Layer {
  LinearId qkv;
  LinearId output;
  NormId attention_norm;
  LinearId up;
  LinearId down;
  NormId ffn_norm;
};

struct Bert : Encoder {
  void Forward(EncoderOps& ops, const StepInput& input) const override {
    Activation hidden = ops.EmbedAll(tables, embedding_norm, input);
    for (size_t i = 0; i < layers.size(); ++i) {
      const Layer& layer = layers[i];
      const int32_t index = static_cast<int32_t>(i);
      Activation x = ops.Norm(std::nullopt, hidden, layer.qkv);
      Activation qkv = ops.Linear(layer.qkv, x);
      ops.RopeAppend(index, spec, std::nullopt, qkv, input);
      x = ops.Attention(index, spec, qkv, input, layer.output);
      ops.AddLinear(layer.output, x, layer.attention_norm, hidden);
      x = ops.Norm(std::nullopt, hidden, layer.up);
      x = ops.GeluLinear(layer.up, x, layer.down);
      ops.AddLinear(layer.down, x, layer.ffn_norm, hidden);
    }
    ops.Pool(hidden, pooling, normalize, input);
  }

  EmbeddingTables tables;
  NormId embedding_norm;
  AttentionSpec spec;
  std::vector<Layer> layers;
  Pooling pooling;
  bool normalize;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Encoder>> LoadBert(const ModelConfig& config,
                                                  EncoderPlacer& placer) {
  auto model = std::make_unique<Bert>();
  const float epsilon = static_cast<float>(config.rms_epsilon);
  MILLRACE_ASSIGN_OR_RETURN(model->tables.tokens, placer.Embedding("token_embd.weight"));
  MILLRACE_ASSIGN_OR_RETURN(model->tables.positions, placer.Embedding("position_embd.weight"));
  MILLRACE_ASSIGN_OR_RETURN(model->tables.types, placer.Embedding("token_types.weight"));
  MILLRACE_ASSIGN_OR_RETURN(model->embedding_norm, placer.LayerNorm("token_embd_norm", epsilon));
  model->spec = {.num_heads = config.heads,
                 .num_kv_heads = config.kv_heads,
                 .head_size = config.head_size,
                 .scale = static_cast<float>(config.attention_scale),
                 .causal = false};
  for (int i = 0; i < config.layers; ++i) {
    Layer& layer = model->layers.emplace_back();
    const std::string block = StrCat("blk.", i, ".");
    MILLRACE_ASSIGN_OR_RETURN(
        layer.qkv,
        placer.Linear({block + "attn_q.weight", block + "attn_k.weight", block + "attn_v.weight"},
                      Shard::kOutput));
    MILLRACE_ASSIGN_OR_RETURN(layer.output,
                              placer.Linear({block + "attn_output.weight"}, Shard::kInput));
    MILLRACE_ASSIGN_OR_RETURN(layer.attention_norm,
                              placer.LayerNorm(block + "attn_output_norm", epsilon));
    MILLRACE_ASSIGN_OR_RETURN(layer.up, placer.Linear({block + "ffn_up.weight"}, Shard::kOutput));
    MILLRACE_ASSIGN_OR_RETURN(layer.down,
                              placer.Linear({block + "ffn_down.weight"}, Shard::kInput));
    MILLRACE_ASSIGN_OR_RETURN(layer.ffn_norm,
                              placer.LayerNorm(block + "layer_output_norm", epsilon));
  }
  model->pooling = config.encoder->pooling;
  model->normalize = config.encoder->normalize;
  return model;
}

}  // namespace millrace
