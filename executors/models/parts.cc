#include "executors/models/parts.h"

#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

std::string Weight(int layer, const char* name) {
  return StrCat("blk.", layer, ".", name, ".weight");
}

NormSpec NormSpecOf(const ModelConfig& config) {
  return {.epsilon = static_cast<float>(config.rms_epsilon),
          .offset = static_cast<float>(config.norm_offset)};
}

RopeSpec RopeSpecOf(const ModelConfig& config, const RopeConfig& rope, int max_model_len) {
  RopeConfig served = Served(rope, config.rope_dimensions, max_model_len);
  return {.base = served.theta,
          .dimensions = config.rope_dimensions,
          .interleaved = config.rope_interleaved,
          .factors = std::move(served.factors),
          .magnitude = static_cast<float>(served.magnitude)};
}

}  // namespace

std::vector<AttentionSpec> AttentionSpecs(const ModelConfig& config, int max_model_len) {
  std::vector<AttentionSpec> specs;
  for (int layer = 0; layer < config.layers; ++layer) {
    const int window = config.Window(layer);
    AttentionSpec spec{.num_heads = config.heads,
                       .num_kv_heads = config.kv_heads,
                       .head_size = config.head_size,
                       .scale = static_cast<float>(config.attention_scale),
                       .soft_cap = static_cast<float>(config.attention_soft_cap),
                       .window = window,
                       .rope = {}};
    if (config.Turned(layer)) {
      const bool other = window > 0 && config.window_rope.has_value();
      spec.rope = RopeSpecOf(config, other ? *config.window_rope : config.rope, max_model_len);
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

absl::StatusOr<NormId> PartLoader::Norm(int layer, const char* name) {
  return placer_.Norm(Weight(layer, name), NormSpecOf(config_));
}

absl::StatusOr<AttentionWeights> PartLoader::Attention(int layer) {
  AttentionWeights weights;
  std::vector<std::string> qkv;
  if (config_.fused_qkv) {
    qkv = {Weight(layer, "attn_qkv")};
  } else {
    qkv = {Weight(layer, "attn_q"), Weight(layer, "attn_k"), Weight(layer, "attn_v")};
  }
  MILLRACE_ASSIGN_OR_RETURN(weights.qkv, placer_.Linear(qkv, Shard::kOutput));
  if (config_.qk_norm != QkNorm::kNone) {
    weights.norms.emplace();
    weights.norms->across_heads = config_.qk_norm == QkNorm::kWhole;
    MILLRACE_ASSIGN_OR_RETURN(weights.norms->q, Norm(layer, "attn_q_norm"));
    MILLRACE_ASSIGN_OR_RETURN(weights.norms->k, Norm(layer, "attn_k_norm"));
  }
  MILLRACE_ASSIGN_OR_RETURN(weights.output,
                            placer_.Linear({Weight(layer, "attn_output")}, Shard::kInput));
  return weights;
}

absl::StatusOr<FeedForwardWeights> PartLoader::FeedForward(int layer) {
  FeedForwardWeights weights;
  std::vector<std::string> gate_up = {Weight(layer, "ffn_up")};
  if (!config_.fused_gate_up) gate_up.insert(gate_up.begin(), Weight(layer, "ffn_gate"));
  MILLRACE_ASSIGN_OR_RETURN(weights.gate_up, placer_.GatedLinear(gate_up));
  MILLRACE_ASSIGN_OR_RETURN(weights.down,
                            placer_.Linear({Weight(layer, "ffn_down")}, Shard::kInput));
  return weights;
}

absl::StatusOr<Ends> PartLoader::OutsideLayers() {
  Ends ends;
  MILLRACE_ASSIGN_OR_RETURN(ends.embedding, placer_.Embedding("token_embd.weight"));
  ends.embedding_factor = static_cast<float>(config_.embedding_factor);
  MILLRACE_ASSIGN_OR_RETURN(ends.output_norm,
                            placer_.Norm("output_norm.weight", NormSpecOf(config_)));
  MILLRACE_ASSIGN_OR_RETURN(
      ends.head, placer_.Head(config_.tied_embeddings ? "token_embd.weight" : "output.weight"));
  ends.logits = {.factor = static_cast<float>(config_.logit_factor),
                 .soft_cap = static_cast<float>(config_.logit_soft_cap)};
  return ends;
}

}  // namespace millrace
