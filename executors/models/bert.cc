#include "executors/models/bert.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "executors/models/parts.h"

namespace millrace {
namespace {

struct Layer {
  AttentionSpec spec;
  LinearId qkv;
  LinearId output;
  NormId attention_norm;
  LinearId up;
  LinearId down;
  NormId ffn_norm;
};

struct Head {
  LinearId dense;
  LinearId output;
};

struct Bert : Encoder {
  int32_t kv_heads() const override {
    int32_t most = 0;
    for (const Layer& layer : layers) most = std::max(most, layer.spec.num_kv_heads);
    return most;
  }

  void Forward(EncoderOps& ops, const StepInput& input) const override {
    ops.BeginStep(input);
    Residual hidden = ops.EmbedAll(tables, embedding_norm);
    for (size_t i = 0; i < layers.size(); ++i) {
      const Layer& layer = layers[i];
      const int32_t index = static_cast<int32_t>(i);
      LinearInput x = ops.AsInput(hidden, {layer.qkv});
      Qkv qkv = ops.QkvLinear(layer.qkv, x);
      const Query q = ops.RopeAppend(index, layer.spec, std::nullopt, std::move(qkv));
      x = ops.Attention(index, layer.spec, q, {layer.output});
      ops.AddLinear(layer.output, x, layer.attention_norm, hidden);
      x = ops.AsInput(hidden, {layer.up});
      x = ops.GeluLinear(layer.up, x, {layer.down});
      ops.AddLinear(layer.down, x, layer.ffn_norm, hidden);
    }
    if (!head.has_value()) return ops.Pool(hidden, pooling, normalize);
    LinearInput x = ops.FirstTokens(hidden, {head->dense});
    x = ops.TanhLinear(head->dense, x, {head->output});
    ops.Classify(head->output, x);
  }

  EmbeddingTables tables;
  NormId embedding_norm;
  std::vector<Layer> layers;
  Pooling pooling;
  bool normalize;
  std::optional<Head> head;  // set: a cross-encoder
};

// Each rank has the whole head: it is as small as a layer's output.
absl::StatusOr<Head> LoadHead(EncoderPlacer& placer) {
  Head head;
  MILLRACE_ASSIGN_OR_RETURN(head.dense, placer.Linear({"cls.weight"}, {}));
  MILLRACE_ASSIGN_OR_RETURN(head.output, placer.Linear({"cls.output.weight"}, {}));
  return head;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Encoder>> LoadBert(const ModelConfig& config,
                                                  EncoderPlacer& placer) {
  auto model = std::make_unique<Bert>();
  const float epsilon = static_cast<float>(config.norm_epsilon);
  MILLRACE_ASSIGN_OR_RETURN(model->tables.tokens, placer.Embedding("token_embd.weight"));
  MILLRACE_ASSIGN_OR_RETURN(model->tables.positions, placer.Embedding("position_embd.weight"));
  MILLRACE_ASSIGN_OR_RETURN(model->tables.types, placer.Embedding("token_types.weight"));
  MILLRACE_ASSIGN_OR_RETURN(model->embedding_norm, placer.LayerNorm("token_embd_norm", epsilon));
  model->tables.first_position = config.encoder->first_position;
  model->tables.num_types = config.encoder->token_types;
  const SoftmaxAttention& attention = config.layers[0].softmax();  // all layers' are alike
  const AttentionSpec spec{.num_heads = attention.heads,
                           .num_kv_heads = attention.kv_heads,
                           .head_size = attention.head_size,
                           .scale = static_cast<float>(attention.scale),
                           .causal = false,
                           .rope = {}};
  for (int i = 0; i < config.num_layers(); ++i) {
    Layer& layer = model->layers.emplace_back();
    const std::string block = StrCat("blk.", i, ".");
    const std::vector<std::string> qkv = {block + "attn_q.weight", block + "attn_k.weight",
                                          block + "attn_v.weight"};
    const std::string output = block + "attn_output.weight";
    const std::string up = block + "ffn_up.weight";
    const std::string down = block + "ffn_down.weight";
    layer.spec = spec;
    MILLRACE_ASSIGN_OR_RETURN(const HeadShares heads, ShareHeads(placer, spec, qkv, output));
    layer.spec.num_heads = static_cast<int32_t>(heads.q.size);
    layer.spec.num_kv_heads = static_cast<int32_t>(heads.kv.size);
    MILLRACE_ASSIGN_OR_RETURN(layer.qkv, placer.Linear(qkv, QkvShard(heads, spec.head_size)));
    MILLRACE_ASSIGN_OR_RETURN(layer.output,
                              placer.Linear({output}, OutputShard(heads, spec.head_size)));
    MILLRACE_ASSIGN_OR_RETURN(layer.attention_norm,
                              placer.LayerNorm(block + "attn_output_norm", epsilon));
    MILLRACE_ASSIGN_OR_RETURN(const Share share,
                              ShareFeedForward(placer, config.layers[i].ffn_size(), {up}, down));
    MILLRACE_ASSIGN_OR_RETURN(layer.up,
                              placer.Linear({up}, {.rows = {share}, .columns = std::nullopt}));
    MILLRACE_ASSIGN_OR_RETURN(layer.down, placer.Linear({down}, {.rows = {}, .columns = share}));
    MILLRACE_ASSIGN_OR_RETURN(layer.ffn_norm,
                              placer.LayerNorm(block + "layer_output_norm", epsilon));
  }
  if (config.encoder->classifier.has_value()) {
    MILLRACE_ASSIGN_OR_RETURN(model->head, LoadHead(placer));
  }
  model->pooling = config.encoder->pooling;
  model->normalize = config.encoder->normalize;
  return model;
}

}  // namespace millrace
