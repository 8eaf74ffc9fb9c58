#include "executors/models/encoder.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "executors/models/parts.h"

namespace millrace {
namespace {

// The norms are before a layer's blocks, or behind the sums. Layer 0 of those before reads the
// embeddings, which are normed already.
struct Layer {
  AttentionSpec spec;
  std::optional<NormId> attention_input;
  LinearId qkv;
  LinearId output;
  std::optional<NormId> attention_sum;
  std::optional<NormId> ffn_input;
  LinearId up;  // with the gate, if there is a function of both
  std::optional<GateFunction> gate;
  LinearId down;
  std::optional<NormId> ffn_sum;
};

struct EncoderModel : Encoder {
  std::vector<int32_t> layer_state_heads() const override {
    std::vector<int32_t> heads;
    for (const Layer& layer : layers) heads.push_back(layer.spec.num_kv_heads);
    return heads;
  }

  void Forward(EncoderOps& ops, const StepInput& input) const override {
    ops.BeginStep(input);
    Residual hidden = ops.EmbedAll(tables, embedding_norm);
    for (size_t i = 0; i < layers.size(); ++i) {
      const Layer& layer = layers[i];
      const int32_t index = static_cast<int32_t>(i);
      LinearInput x = ops.NormInput(layer.attention_input, hidden, {layer.qkv});
      Qkv qkv = ops.QkvLinear(layer.qkv, x);
      const Query q = ops.RopeAppend(index, layer.spec, std::nullopt, std::move(qkv));
      x = ops.Attention(index, layer.spec, q, {layer.output});
      ops.AddLinear(layer.output, x, layer.attention_sum, hidden);
      x = ops.NormInput(layer.ffn_input, hidden, {layer.up});
      x = layer.gate.has_value() ? ops.GatedLinear(layer.up, x, *layer.gate, {layer.down})
                                 : ops.GeluLinear(layer.up, x, {layer.down});
      ops.AddLinear(layer.down, x, layer.ffn_sum, hidden);
    }
    if (output_norm.has_value()) ops.NormAll(*output_norm, hidden);
    if (head.empty()) return ops.Pool(hidden, pooling, normalize);
    LinearInput x = ops.PoolRows(hidden, pooling, {head[0].linear});
    for (size_t i = 0; i + 1 < head.size(); ++i) {
      x = ops.RowsLinear(head[i], x, {head[i + 1].linear});
    }
    ops.Output(head.back(), x, normalize);
  }

  EmbeddingTables tables;
  NormId embedding_norm;
  std::vector<Layer> layers;
  std::optional<NormId> output_norm;
  Pooling pooling;
  bool normalize;
  std::vector<HeadLayer> head;  // of a cross-encoder, or the Dense layers of embeddings
};

class EncoderLoader {
 public:
  EncoderLoader(const ModelConfig& config, EncoderPlacer& placer)
      : config_(config),
        encoder_(*config.encoder),
        placer_(placer),
        epsilon_(static_cast<float>(config.norm_epsilon)) {}

  absl::StatusOr<NormId> Norm(const std::string& name) { return placer_.LayerNorm(name, epsilon_); }

  absl::StatusOr<EmbeddingTables> Tables() {
    EmbeddingTables tables{.first_position = encoder_.first_position,
                           .num_types = encoder_.token_types};
    MILLRACE_ASSIGN_OR_RETURN(tables.tokens, placer_.Embedding("token_embd.weight"));
    if (encoder_.positions > 0) {
      MILLRACE_ASSIGN_OR_RETURN(tables.positions, placer_.Embedding("position_embd.weight"));
    }
    if (encoder_.token_types > 0) {
      MILLRACE_ASSIGN_OR_RETURN(tables.types, placer_.Embedding("token_types.weight"));
    }
    return tables;
  }

  // `bias`: of the scores of all layers.
  absl::StatusOr<Layer> LoadLayer(int index, const SoftmaxAttention& attention, int max_model_len,
                                  std::optional<PositionBiasId> bias) {
    const std::string block = StrCat("blk.", index, ".");
    Layer layer{.spec = AttentionSpecOf(attention, max_model_len)};
    layer.spec.causal = false;
    layer.spec.position_bias = bias;
    const bool pre = config_.layers[index].norms == NormPlacement::kPre;
    if (pre && index > 0) {
      MILLRACE_ASSIGN_OR_RETURN(layer.attention_input, Norm(block + "attn_norm"));
    }
    MILLRACE_RETURN_IF_ERROR(LoadAttention(attention, block, &layer));
    if (pre) {
      MILLRACE_ASSIGN_OR_RETURN(layer.ffn_input, Norm(block + "ffn_norm"));
    } else {
      MILLRACE_ASSIGN_OR_RETURN(layer.attention_sum, Norm(block + "attn_output_norm"));
    }
    MILLRACE_RETURN_IF_ERROR(LoadFeedForward(index, block, &layer));
    if (!pre) {
      MILLRACE_ASSIGN_OR_RETURN(layer.ffn_sum, Norm(block + "layer_output_norm"));
    }
    return layer;
  }

  // Each rank has whole heads: they are as small as a layer's output.
  absl::StatusOr<std::vector<HeadLayer>> Head() {
    std::vector<HeadLayer> head;
    if (!encoder_.classifier.has_value()) {
      for (size_t i = 0; i < encoder_.dense.size(); ++i) {
        HeadLayer& layer = head.emplace_back();
        MILLRACE_ASSIGN_OR_RETURN(layer.linear,
                                  placer_.Linear({StrCat("dense.", i, ".weight")}, {}));
        layer.function = encoder_.dense[i].function;
      }
      return head;
    }
    const ClassifierHead& classifier = *encoder_.classifier;
    if (classifier.dense) {
      HeadLayer& layer = head.emplace_back();
      MILLRACE_ASSIGN_OR_RETURN(layer.linear, placer_.Linear({"cls.weight"}, {}));
      layer.function = classifier.function;
      if (classifier.norm) {
        MILLRACE_ASSIGN_OR_RETURN(layer.norm, Norm("cls.norm"));
      }
    }
    if (classifier.output) {
      HeadLayer& layer = head.emplace_back();
      MILLRACE_ASSIGN_OR_RETURN(layer.linear, placer_.Linear({"cls.output.weight"}, {}));
    }
    return head;
  }

 private:
  absl::Status LoadAttention(const SoftmaxAttention& attention, const std::string& block,
                             Layer* layer) {
    const int size = layer->spec.head_size;
    std::vector<std::string> qkv = {block + "attn_qkv.weight"};
    if (!attention.fused_qkv) {
      qkv = {block + "attn_q.weight", block + "attn_k.weight", block + "attn_v.weight"};
    }
    const std::string output = block + "attn_output.weight";
    MILLRACE_ASSIGN_OR_RETURN(const HeadShares heads,
                              ShareHeads(placer_, layer->spec, qkv, output));
    layer->spec.num_heads = static_cast<int32_t>(heads.q.size);
    layer->spec.num_kv_heads = static_cast<int32_t>(heads.kv.size);
    layer->spec.first_head = static_cast<int32_t>(heads.q.begin);
    MILLRACE_ASSIGN_OR_RETURN(layer->qkv, placer_.Linear(qkv, QkvShard(heads, size)));
    MILLRACE_ASSIGN_OR_RETURN(layer->output, placer_.Linear({output}, OutputShard(heads, size)));
    return absl::OkStatus();
  }

  absl::Status LoadFeedForward(int index, const std::string& block, Layer* layer) {
    const LayerConfig& config = config_.layers[index];
    const auto* gated = std::get_if<GatedFeedForward>(&config.feed_forward);
    std::vector<std::string> up = {block + "ffn_up.weight"};
    if (gated != nullptr && !gated->fused_gate_up) up.insert(up.begin(), block + "ffn_gate.weight");
    const std::string down = block + "ffn_down.weight";
    MILLRACE_ASSIGN_OR_RETURN(const Share share,
                              ShareFeedForward(placer_, config.ffn_size(), up, down));
    if (gated != nullptr) {
      layer->gate = gated->function;
      MILLRACE_ASSIGN_OR_RETURN(layer->up, placer_.GatedLinear(up, share));
    } else {
      MILLRACE_ASSIGN_OR_RETURN(layer->up,
                                placer_.Linear(up, {.rows = {share}, .columns = std::nullopt}));
    }
    MILLRACE_ASSIGN_OR_RETURN(layer->down, placer_.Linear({down}, {.rows = {}, .columns = share}));
    return absl::OkStatus();
  }

  const ModelConfig& config_;
  const EncoderConfig& encoder_;
  EncoderPlacer& placer_;
  const float epsilon_;
};

}  // namespace

int32_t PositionBucket(int32_t distance, int32_t buckets) {
  constexpr float kFarthest = 128;
  const int32_t side = buckets / 2;
  const int32_t exact = side / 2;
  const int32_t far = std::abs(distance);
  const int32_t first = distance > 0 ? side : 0;
  if (far < exact) return first + far;
  const float ratio = std::log(static_cast<float>(far) / static_cast<float>(exact)) /
                      std::log(kFarthest / static_cast<float>(exact));
  const auto beyond = static_cast<int32_t>(ratio * static_cast<float>(side - exact));
  return first + std::min(exact + beyond, side - 1);
}

absl::StatusOr<std::unique_ptr<Encoder>> LoadEncoder(const ModelConfig& config, int max_model_len,
                                                     EncoderPlacer& placer) {
  auto model = std::make_unique<EncoderModel>();
  const EncoderConfig& encoder = *config.encoder;
  EncoderLoader loader(config, placer);
  MILLRACE_ASSIGN_OR_RETURN(model->tables, loader.Tables());
  MILLRACE_ASSIGN_OR_RETURN(model->embedding_norm, loader.Norm("token_embd_norm"));
  std::optional<PositionBiasId> bias;
  if (encoder.position_buckets > 0) {
    MILLRACE_ASSIGN_OR_RETURN(bias, placer.PositionBias("attn_rel_b.weight"));
  }
  for (int i = 0; i < config.num_layers(); ++i) {
    MILLRACE_ASSIGN_OR_RETURN(model->layers.emplace_back(),
                              loader.LoadLayer(i, config.layers[i].softmax(), max_model_len, bias));
  }
  if (config.layers[0].norms == NormPlacement::kPre) {
    MILLRACE_ASSIGN_OR_RETURN(model->output_norm, loader.Norm("output_norm"));
  }
  MILLRACE_ASSIGN_OR_RETURN(model->head, loader.Head());
  const bool scores = encoder.classifier.has_value();
  model->pooling = scores ? encoder.classifier->pooling : encoder.pooling;
  model->normalize = !scores && encoder.normalize;
  return model;
}

}  // namespace millrace
