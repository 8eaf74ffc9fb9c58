#include "executors/models/parts.h"

#include <numeric>
#include <utility>
#include <variant>

#include "base/status.h"
#include "base/strings.h"
#include "executors/models/overloaded.h"

namespace millrace {
namespace {

std::string Weight(int layer, std::string_view name) {
  return StrCat("blk.", layer, ".", name, ".weight");
}

NormSpec NormSpecOf(const ModelConfig& config) {
  return {.epsilon = static_cast<float>(config.norm_epsilon),
          .offset = static_cast<float>(config.norm_offset)};
}

// The least common multiple of the blocks' rows.
absl::StatusOr<int64_t> BlockRows(const WeightPlacer& placer,
                                  const std::vector<std::string>& names) {
  int64_t rows = 1;
  for (const std::string& name : names) {
    MILLRACE_ASSIGN_OR_RETURN(const ScaleBlock block, placer.BlockOf(name));
    rows = std::lcm(rows, block.rows);
  }
  return rows;
}

}  // namespace

RopeSpec RopeSpecOf(const RopeConfig& rope, int max_model_len) {
  RopeConfig served = Served(rope, max_model_len);
  return {.base = served.theta,
          .dimensions = served.dimensions,
          .interleaved = served.interleaved,
          .factors = std::move(served.factors),
          .magnitude = static_cast<float>(served.magnitude)};
}

absl::StatusOr<HeadShares> ShareHeads(const WeightPlacer& placer, const AttentionSpec& spec,
                                      const std::vector<std::string>& qkv,
                                      const std::string& output) {
  MILLRACE_ASSIGN_OR_RETURN(const int64_t rows, BlockRows(placer, qkv));
  MILLRACE_ASSIGN_OR_RETURN(const ScaleBlock out, placer.BlockOf(output));
  return DivideHeads(spec.num_heads, spec.num_kv_heads,
                     UnitOf(spec.head_size, std::lcm(rows, out.columns)),
                     UnitOf(spec.head_size, rows), placer.rank());
}

Shard QkvShard(const HeadShares& heads, int head_size, bool output_gate) {
  const Share q = Elements(heads.q, output_gate ? 2 * head_size : head_size);
  const Share kv = Elements(heads.kv, head_size);
  return {.rows = {q, kv, kv}, .columns = std::nullopt};
}

Shard OutputShard(const HeadShares& heads, int head_size) {
  return {.rows = {}, .columns = Elements(heads.q, head_size)};
}

absl::StatusOr<Share> ShareFeedForward(const WeightPlacer& placer, int size,
                                       const std::vector<std::string>& up,
                                       const std::string& down) {
  MILLRACE_ASSIGN_OR_RETURN(const int64_t rows, BlockRows(placer, up));
  MILLRACE_ASSIGN_OR_RETURN(const ScaleBlock block, placer.BlockOf(down));
  return DivideUnits(size, std::lcm(kShareMultiple, std::lcm(rows, block.columns)), placer.rank());
}

AttentionSpec AttentionSpecOf(const SoftmaxAttention& attention, int max_model_len) {
  AttentionSpec spec = {.num_heads = attention.heads,
                        .num_kv_heads = attention.kv_heads,
                        .head_size = attention.head_size,
                        .scale = static_cast<float>(attention.scale),
                        .soft_cap = static_cast<float>(attention.soft_cap),
                        .window = attention.window,
                        .rope = {},
                        .output_gate = attention.output_gate};
  if (attention.rope.has_value()) spec.rope = RopeSpecOf(*attention.rope, max_model_len);
  return spec;
}

absl::StatusOr<NormId> PartLoader::Norm(int layer, const char* name,
                                        const std::optional<Share>& share, bool counted) {
  NormSpec spec = NormSpecOf(config_);
  spec.share = share;
  spec.counted = counted;
  return placer_.Norm(Weight(layer, name), spec);
}

absl::StatusOr<Mixer> PartLoader::LayerMixer(int layer, int max_model_len) {
  return std::visit(Overloaded{[&](const SoftmaxAttention& attention) {
                                 return Softmax(layer, attention, max_model_len);
                               },
                               [&](const GatedDelta& delta) { return Delta(layer, delta); },
                               [&](const ShortConvolution& convolution) {
                                 return Convolution(layer, convolution);
                               },
                               [&](const Mamba2& mixer) { return StateSpace(layer, mixer); },
                               [](const Absent&) -> absl::StatusOr<Mixer> {
                                 return absl::InternalError("the layer has no mixer");
                               }},
                    config_.layers[layer].attention);
}

absl::StatusOr<Mixer> PartLoader::Softmax(int layer, const SoftmaxAttention& attention,
                                          int max_model_len) {
  SoftmaxMixer mixer{.spec = AttentionSpecOf(attention, max_model_len)};
  AttentionSpec& spec = mixer.spec;
  std::vector<std::string> qkv;
  if (attention.fused_qkv) {
    qkv = {Weight(layer, "attn_qkv")};
  } else {
    qkv = {Weight(layer, "attn_q"), Weight(layer, "attn_k"), Weight(layer, "attn_v")};
  }
  const std::string output = Weight(layer, "attn_output");
  const int size = spec.head_size;
  MILLRACE_ASSIGN_OR_RETURN(const HeadShares heads, ShareHeads(placer_, spec, qkv, output));
  spec.num_heads = static_cast<int32_t>(heads.q.size);
  spec.num_kv_heads = static_cast<int32_t>(heads.kv.size);
  if (attention.sinks) {
    MILLRACE_ASSIGN_OR_RETURN(spec.sinks, placer_.Vector(Weight(layer, "attn_sinks"), heads.q));
  }
  MILLRACE_ASSIGN_OR_RETURN(mixer.qkv,
                            placer_.Linear(qkv, QkvShard(heads, size, spec.output_gate)));
  if (attention.qk_norm != QkNorm::kNone) {
    mixer.norms.emplace();
    mixer.norms->across_heads = attention.qk_norm == QkNorm::kWhole;
    std::optional<Share> q, k;
    if (mixer.norms->across_heads) {
      q = Elements(heads.q, size);
      k = Elements(heads.kv, size);
    }
    MILLRACE_ASSIGN_OR_RETURN(mixer.norms->q, Norm(layer, "attn_q_norm", q));
    MILLRACE_ASSIGN_OR_RETURN(mixer.norms->k, Norm(layer, "attn_k_norm", k, heads.owns_kv));
  }
  MILLRACE_ASSIGN_OR_RETURN(mixer.output, placer_.Linear({output}, OutputShard(heads, size)));
  return mixer;
}

absl::StatusOr<Mixer> PartLoader::Delta(int layer, const GatedDelta& delta) {
  // What the files have key head by key head is one tensor.
  std::vector<std::string> qkvz = {Weight(layer, "attn_qkv"), Weight(layer, "attn_gate")};
  std::vector<std::string> beta_alpha = {Weight(layer, "ssm_beta"), Weight(layer, "ssm_alpha")};
  if (delta.fused_qkvz) qkvz = {Weight(layer, "ssm_in")};
  if (delta.fused_beta_alpha) beta_alpha = {Weight(layer, "ssm_ba")};
  const std::string output = Weight(layer, "ssm_out");
  MILLRACE_ASSIGN_OR_RETURN(const int64_t rows, BlockRows(placer_, qkvz));
  MILLRACE_ASSIGN_OR_RETURN(const ScaleBlock out, placer_.BlockOf(output));
  if (delta.in_turns && delta.value_heads != delta.key_heads && placer_.rank().size > 1) {
    return absl::UnimplementedError(StrCat(
        qkvz[0], " has ", delta.value_heads, " value heads in turns, of ", delta.key_heads,
        " key heads; allowed with tensor_parallel_size above 1: value heads behind one another, as "
        "in folders"));
  }
  // Value heads are divided as attention's queries are, by the key heads that they read.
  const HeadShares heads = DivideHeads(delta.value_heads, delta.key_heads,
                                       UnitOf(delta.value_size, std::lcm(rows, out.columns)),
                                       UnitOf(delta.key_size, rows), placer_.rank());
  const Share keys = Elements(heads.kv, delta.key_size);
  const Share values = Elements(heads.q, delta.value_size);
  GatedDeltaMixer mixer{.spec = {.key_heads = static_cast<int32_t>(heads.kv.size),
                                 .value_heads = static_cast<int32_t>(heads.q.size),
                                 .key_size = delta.key_size,
                                 .value_size = delta.value_size,
                                 .converted = delta.converted,
                                 .in_turns = delta.in_turns}};
  MILLRACE_ASSIGN_OR_RETURN(
      mixer.weights.qkvz, placer_.Linear(qkvz, {.rows = {keys, keys, values, values},
                                                .columns = std::nullopt,
                                                .groups = delta.fused_qkvz ? delta.key_heads : 1}));
  MILLRACE_ASSIGN_OR_RETURN(
      mixer.weights.beta_alpha,
      placer_.Linear(beta_alpha, {.rows = {heads.q, heads.q},
                                  .columns = std::nullopt,
                                  .groups = delta.fused_beta_alpha ? delta.key_heads : 1}));
  mixer.readers = {mixer.weights.qkvz, mixer.weights.beta_alpha};
  MILLRACE_ASSIGN_OR_RETURN(mixer.spec.convolution,
                            placer_.Convolution(StrCat("blk.", layer, ".ssm_conv1d"),
                                                /*bias=*/false, {keys, keys, values}));
  MILLRACE_ASSIGN_OR_RETURN(mixer.spec.a, placer_.Vector(StrCat("blk.", layer, ".ssm_a"), heads.q));
  MILLRACE_ASSIGN_OR_RETURN(mixer.spec.time_bias,
                            placer_.Vector(StrCat("blk.", layer, ".ssm_dt.bias"), heads.q));
  MILLRACE_ASSIGN_OR_RETURN(mixer.spec.norm,
                            placer_.Norm(Weight(layer, "ssm_norm"),
                                         {.epsilon = static_cast<float>(config_.norm_epsilon)}));
  MILLRACE_ASSIGN_OR_RETURN(mixer.output,
                            placer_.Linear({output}, {.rows = {}, .columns = values}));
  return mixer;
}

absl::StatusOr<Mixer> PartLoader::Convolution(int layer, const ShortConvolution& convolution) {
  const std::string projection = Weight(layer, "shortconv.in_proj");
  const std::string output = Weight(layer, "shortconv.out_proj");
  // Channels are divided as a feed-forward network's values are.
  MILLRACE_ASSIGN_OR_RETURN(const Share channels,
                            ShareFeedForward(placer_, convolution.channels, {projection}, output));
  ShortConvolutionMixer mixer{.spec = {.channels = static_cast<int32_t>(channels.size)}};
  MILLRACE_ASSIGN_OR_RETURN(mixer.projection,
                            placer_.Linear({projection}, {.rows = {channels, channels, channels},
                                                          .columns = std::nullopt}));
  MILLRACE_ASSIGN_OR_RETURN(
      mixer.spec.convolution,
      placer_.Convolution(StrCat("blk.", layer, ".shortconv.conv"), convolution.bias, {channels}));
  mixer.spec.convolution.silu = false;
  MILLRACE_ASSIGN_OR_RETURN(mixer.output,
                            placer_.Linear({output}, {.rows = {}, .columns = channels}));
  return mixer;
}

absl::StatusOr<Mixer> PartLoader::StateSpace(int layer, const Mamba2& config) {
  const std::string projection = Weight(layer, "ssm_in");
  const std::string output = Weight(layer, "ssm_out");
  const auto tensor = [layer](const char* name) { return StrCat("blk.", layer, ".", name); };
  MILLRACE_ASSIGN_OR_RETURN(const int64_t rows, BlockRows(placer_, {projection}));
  MILLRACE_ASSIGN_OR_RETURN(const ScaleBlock out, placer_.BlockOf(output));
  // Heads are divided as attention's queries are, by the groups whose b and c they read. Each has
  // one row of dt, besides.
  const int64_t unit = std::lcm(UnitOf(config.head_size, std::lcm(rows, out.columns)), rows);
  const HeadShares heads = DivideHeads(config.heads, config.groups, unit,
                                       UnitOf(config.state_size, rows), placer_.rank());
  const Share inner = Elements(heads.q, config.head_size);
  const Share states = Elements(heads.kv, config.state_size);
  Mamba2Mixer mixer{
      .spec = {.heads = static_cast<int32_t>(heads.q.size),
               .head_size = config.head_size,
               .groups = static_cast<int32_t>(heads.kv.size),
               .state_size = config.state_size,
               .least_step = static_cast<float>(config.least_step),
               .largest_step = static_cast<float>(config.largest_step),
               .first_group = static_cast<int32_t>(heads.kv.begin),
               .all_groups = config.groups,
               .shares_groups = heads.q.size * config.groups < heads.kv.size * config.heads,
               .converted = config.converted}};
  Mamba2Spec& spec = mixer.spec;
  MILLRACE_ASSIGN_OR_RETURN(
      mixer.projection,
      placer_.Linear({projection},
                     {.rows = {inner, inner, states, states, heads.q}, .columns = std::nullopt}));
  MILLRACE_ASSIGN_OR_RETURN(
      spec.convolution,
      placer_.Convolution(tensor("ssm_conv1d"), config.convolution_bias, {inner, states, states}));
  MILLRACE_ASSIGN_OR_RETURN(spec.a, placer_.Vector(tensor("ssm_a"), heads.q));
  MILLRACE_ASSIGN_OR_RETURN(spec.d, placer_.Vector(tensor("ssm_d"), heads.q));
  MILLRACE_ASSIGN_OR_RETURN(spec.time_bias, placer_.Vector(tensor("ssm_dt.bias"), heads.q));
  MILLRACE_ASSIGN_OR_RETURN(
      spec.norm,
      placer_.Norm(Weight(layer, "ssm_norm"),
                   {.epsilon = static_cast<float>(config_.norm_epsilon), .share = inner}));
  MILLRACE_ASSIGN_OR_RETURN(mixer.output, placer_.Linear({output}, {.rows = {}, .columns = inner}));
  return mixer;
}

absl::StatusOr<GatedNetwork> PartLoader::Gated(int layer, const GatedFeedForward& ffn,
                                               const char* suffix) {
  GatedNetwork network{.function = ffn.function};
  const bool has_gate = HasGate(ffn.function);
  std::vector<std::string> gate_up = {Weight(layer, StrCat("ffn_up", suffix))};
  if (has_gate && !ffn.fused_gate_up) {
    gate_up.insert(gate_up.begin(), Weight(layer, StrCat("ffn_gate", suffix)));
  }
  const std::string down = Weight(layer, StrCat("ffn_down", suffix));
  MILLRACE_ASSIGN_OR_RETURN(const Share share, ShareFeedForward(placer_, ffn.size, gate_up, down));
  MILLRACE_ASSIGN_OR_RETURN(
      network.gate_up, has_gate
                           ? placer_.GatedLinear(gate_up, share)
                           : placer_.Linear(gate_up, {.rows = {share}, .columns = std::nullopt}));
  MILLRACE_ASSIGN_OR_RETURN(network.down, placer_.Linear({down}, {.rows = {}, .columns = share}));
  return network;
}

absl::StatusOr<MixtureWeights> PartLoader::Experts(int layer, const ExpertsFeedForward& ffn) {
  MixtureWeights weights;
  RouterNames router = {
      .weight = Weight(layer, "ffn_gate_inp"), .correction = {}, .shared_gate = {}};
  if (ffn.router.correction) router.correction = StrCat("blk.", layer, ".exp_probs_b.bias");
  if (ffn.shared_gate) router.shared_gate = Weight(layer, "ffn_gate_inp_shexp");
  MILLRACE_ASSIGN_OR_RETURN(weights.router, placer_.Router(router));
  ExpertNames gate_up, down;
  const bool has_gate = HasGate(ffn.function);
  for (int expert = 0; expert < ffn.router.experts; ++expert) {
    std::vector<std::string>& names = gate_up.emplace_back();
    if (has_gate) names.push_back(Weight(layer, StrCat("ffn_gate.", expert)));
    names.push_back(Weight(layer, StrCat("ffn_up.", expert)));
    down.push_back({Weight(layer, StrCat("ffn_down.", expert))});
  }
  // Ranks hold some of the experts, or a share of each.
  Share experts = Whole(ffn.router.experts);
  Share share = Whole(ffn.size);
  if (placer_.rank().expert_parallel) {
    experts = DivideUnits(ffn.router.experts, 1, placer_.rank());
  } else {
    MILLRACE_ASSIGN_OR_RETURN(share, ShareFeedForward(placer_, ffn.size, gate_up[0], down[0][0]));
  }
  MILLRACE_ASSIGN_OR_RETURN(
      weights.gate_up,
      has_gate ? placer_.GatedExperts(gate_up, experts, share)
               : placer_.Experts(gate_up, experts, {.rows = {share}, .columns = std::nullopt}));
  MILLRACE_ASSIGN_OR_RETURN(weights.down,
                            placer_.Experts(down, experts, {.rows = {}, .columns = share}));
  if (ffn.shared_size == 0) return weights;
  MILLRACE_ASSIGN_OR_RETURN(
      const GatedNetwork shared,
      Gated(layer, {.size = ffn.shared_size, .function = ffn.function}, "_shexp"));
  weights.shared = {.gate_up = shared.gate_up, .down = shared.down, .gated = ffn.shared_gate};
  return weights;
}

absl::StatusOr<FeedForward> PartLoader::LayerFeedForward(int layer) {
  const LayerConfig& described = config_.layers[layer];
  if (const auto* ffn = std::get_if<GatedFeedForward>(&described.feed_forward)) {
    return Gated(layer, *ffn, "");
  }
  const auto& ffn = std::get<ExpertsFeedForward>(described.feed_forward);
  MILLRACE_ASSIGN_OR_RETURN(const MixtureWeights weights, Experts(layer, ffn));
  MixtureNetwork network{.weights = weights,
                         .spec = {.router = ffn.router, .function = ffn.function},
                         .readers = {weights.router, weights.gate_up}};
  if (weights.shared.has_value()) network.readers.push_back(weights.shared->gate_up);
  return network;
}

absl::StatusOr<Ends> PartLoader::OutsideLayers() {
  Ends ends;
  MILLRACE_ASSIGN_OR_RETURN(ends.embedding, placer_.Embedding("token_embd.weight"));
  ends.embedding_factor = static_cast<float>(config_.embedding_factor);
  MILLRACE_ASSIGN_OR_RETURN(ends.output_norm,
                            placer_.Norm("output_norm.weight", NormSpecOf(config_)));
  if (config_.pooler.has_value()) return ends;
  MILLRACE_ASSIGN_OR_RETURN(
      ends.head, placer_.Head(config_.tied_embeddings ? "token_embd.weight" : "output.weight"));
  ends.logits = {.factor = static_cast<float>(config_.logit_factor),
                 .soft_cap = static_cast<float>(config_.logit_soft_cap)};
  return ends;
}

}  // namespace millrace
