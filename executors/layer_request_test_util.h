// A layer of a decoder for tests of ops, whose features can be requested one by one.
#ifndef MILLRACE_EXECUTORS_LAYER_REQUEST_TEST_UTIL_H_
#define MILLRACE_EXECUTORS_LAYER_REQUEST_TEST_UTIL_H_

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "executors/decoder_ops.h"
#include "executors/executor_driver_test_util.h"
#include "executors/weights/shares.h"

namespace millrace {

// The weights of a Llama's first layer, and those outside of the layers.
struct LayerWeights {
  EmbeddingId embedding;
  NormId norm;
  LinearId qkv, output, gate_up, down, head;
};

// `ffn`: the rows of gate and of up. The head is tied.
inline LayerWeights PlaceLayer(DecoderPlacer& placer, int64_t ffn) {
  const auto get = [](auto placed) {
    CheckOk(placed.status());
    return *placed;
  };
  const std::string layer = "blk.0.";
  return {.embedding = get(placer.Embedding("token_embd.weight")),
          .norm = get(placer.Norm("output_norm.weight", {.epsilon = 1e-5f})),
          .qkv = get(placer.Linear(
              {layer + "attn_q.weight", layer + "attn_k.weight", layer + "attn_v.weight"}, {})),
          .output = get(placer.Linear({layer + "attn_output.weight"}, {})),
          .gate_up = get(
              placer.GatedLinear({layer + "ffn_gate.weight", layer + "ffn_up.weight"}, Whole(ffn))),
          .down = get(placer.Linear({layer + "ffn_down.weight"}, {})),
          .head = get(placer.Head("token_embd.weight"))};
}

// The features that the layer requests from the ops.
struct LayerRequest {
  float embedding_factor = 1;
  std::optional<NormId> norm;
  AttentionSpec attention;
  std::optional<HeadNorms> head_norms;
  Addend addend;
  GateFunction gate = GateFunction::kSilu;
  LogitSpec logits;
};

// `Ops` are DecoderOps and AttentionOps.
template <typename Ops>
void RunLayer(Ops& ops, const LayerWeights& weights, const LayerRequest& request,
              const StepInput& input) {
  ops.BeginStep(input);
  Residual residual = ops.Embed(weights.embedding, request.embedding_factor);
  LinearInput x = ops.Norm(request.norm, residual, {weights.qkv});
  const Query q =
      ops.RopeAppend(0, request.attention, request.head_norms, ops.QkvLinear(weights.qkv, x));
  x = ops.Attention(0, request.attention, q, {weights.output});
  x = ops.RowLinear(weights.output, std::move(x), request.addend, residual, request.norm,
                    {weights.gate_up});
  x = ops.GatedLinear(weights.gate_up, x, request.gate, {weights.down});
  x = ops.RowLinear(weights.down, std::move(x), request.addend, residual, request.norm,
                    {weights.head});
  ops.Sample(ops.Head(weights.head, request.logits, x));
}

// A feature that some device may lack.
struct LayerFeature {
  std::string refusal;  // of a device that lacks it, up to what is allowed
  std::function<void(LayerRequest&)> ask;
};

inline std::vector<LayerFeature> LayerFeatures(NormId norm) {
  return {
      {"embedding factor is 2", [](LayerRequest& r) { r.embedding_factor = 2; }},
      {"norm before a block is absent", [](LayerRequest& r) { r.norm.reset(); }},
      {"norm of what a block adds is an RMS norm",
       [norm](LayerRequest& r) { r.addend.norm = norm; }},
      {"residual factor is 0.5", [](LayerRequest& r) { r.addend.factor = 0.5f; }},
      {"gate function is GELU", [](LayerRequest& r) { r.gate = GateFunction::kGeluTanh; }},
      {"gate function is a clamped swish",
       [](LayerRequest& r) { r.gate = GateFunction::kClampedSwish; }},
      {"norm of q and k is across heads",
       [norm](LayerRequest& r) { r.head_norms = {.q = norm, .k = norm, .across_heads = true}; }},
      {"head size is 24", [](LayerRequest& r) { r.attention.head_size = 24; }},
      {"number of query heads for each kv head is 17",
       [](LayerRequest& r) { r.attention.num_heads = 17 * r.attention.num_kv_heads; }},
      {"attention soft cap is 30", [](LayerRequest& r) { r.attention.soft_cap = 30; }},
      {"attention is to all of a text", [](LayerRequest& r) { r.attention.causal = false; }},
      {"attention's output gate is present",
       [](LayerRequest& r) { r.attention.output_gate = true; }},
      {"number of rotary dimensions is 12",
       [](LayerRequest& r) { r.attention.rope.dimensions = 12; }},
      {"rotary embedding is another in some layers",
       [](LayerRequest& r) { r.attention.rope.base *= 2; }},
      {"logit factor is 0.25", [](LayerRequest& r) { r.logits.factor = 0.25f; }},
      {"logit soft cap is 20", [](LayerRequest& r) { r.logits.soft_cap = 20; }},
  };
}

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_LAYER_REQUEST_TEST_UTIL_H_
