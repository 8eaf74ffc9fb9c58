#include "formats/families/decoder.h"

#include <string>
#include <utility>
#include <variant>

#include "base/strings.h"

namespace millrace {
namespace {

void AddAttention(const std::string& block, int64_t hidden, const SoftmaxAttention& attention,
                  std::vector<ModelTensor>* tensors) {
  const int64_t head = attention.head_size;
  const int64_t out = attention.heads * head;
  const int64_t q = attention.output_gate ? 2 * out : out;
  const int64_t kv = attention.kv_heads * head;
  const auto linear = [&](const char* name, int64_t rows, int64_t columns) {
    tensors->push_back({StrCat(block, name, ".weight"), {rows, columns}, TensorRole::kLinear});
  };
  const auto vector = [&](const char* name, int64_t size) {
    tensors->push_back({block + name, {size}, TensorRole::kVector});
  };
  if (attention.fused_qkv) {
    linear("attn_qkv", q + 2 * kv, hidden);
  } else {
    linear("attn_q", q, hidden);
    linear("attn_k", kv, hidden);
    linear("attn_v", kv, hidden);
  }
  if (attention.qkv_bias) {
    vector("attn_q.bias", q);
    vector("attn_k.bias", kv);
    vector("attn_v.bias", kv);
  }
  if (attention.qk_norm != QkNorm::kNone) {
    const bool whole = attention.qk_norm == QkNorm::kWhole;
    vector("attn_q_norm.weight", whole ? out : head);
    vector("attn_k_norm.weight", whole ? kv : head);
  }
  linear("attn_output", hidden, out);
  if (attention.output_bias) vector("attn_output.bias", hidden);
  if (attention.sinks) vector("attn_sinks.weight", attention.heads);
}

void AddAttention(const std::string& block, int64_t hidden, const GatedDelta& delta,
                  std::vector<ModelTensor>* tensors) {
  const int64_t values = int64_t{delta.value_heads} * delta.value_size;
  const auto add = [&](const char* name, std::vector<int64_t> shape, TensorRole role) {
    tensors->push_back({block + name, std::move(shape), role});
  };
  if (delta.fused_qkvz) {
    add("ssm_in.weight", {delta.channels() + values, hidden}, TensorRole::kLinear);
  } else {
    add("attn_qkv.weight", {delta.channels(), hidden}, TensorRole::kLinear);
    add("attn_gate.weight", {values, hidden}, TensorRole::kLinear);
  }
  // So few rows are hardly ever quantized.
  if (delta.fused_beta_alpha) {
    add("ssm_ba.weight", {2 * int64_t{delta.value_heads}, hidden}, TensorRole::kRouter);
  } else {
    add("ssm_beta.weight", {delta.value_heads, hidden}, TensorRole::kRouter);
    add("ssm_alpha.weight", {delta.value_heads, hidden}, TensorRole::kRouter);
  }
  std::vector<int64_t> convolution = {delta.channels(), 1, kConvolutionWidth};
  if (delta.converted) convolution = {delta.channels(), kConvolutionWidth};
  add("ssm_conv1d.weight", std::move(convolution), TensorRole::kVector);
  add("ssm_a", {delta.value_heads}, TensorRole::kVector);
  add("ssm_dt.bias", {delta.value_heads}, TensorRole::kVector);
  add("ssm_norm.weight", {delta.value_size}, TensorRole::kVector);
  add("ssm_out.weight", {hidden, values}, TensorRole::kLinear);
}

void AddAttention(const std::string& block, int64_t hidden, const ShortConvolution& mixer,
                  std::vector<ModelTensor>* tensors) {
  const int64_t channels = mixer.channels;
  const auto add = [&](const char* name, std::vector<int64_t> shape, TensorRole role) {
    tensors->push_back({StrCat(block, "shortconv.", name), std::move(shape), role});
  };
  std::vector<int64_t> convolution = {channels, 1, mixer.width};
  if (mixer.converted) convolution = {channels, mixer.width};
  add("in_proj.weight", {3 * channels, hidden}, TensorRole::kLinear);
  add("conv.weight", std::move(convolution), TensorRole::kVector);
  add("out_proj.weight", {hidden, channels}, TensorRole::kLinear);
  if (!mixer.bias) return;
  add("in_proj.bias", {3 * channels}, TensorRole::kVector);
  add("conv.bias", {channels}, TensorRole::kVector);
  add("out_proj.bias", {hidden}, TensorRole::kVector);
}

void AddAttention(const std::string& block, int64_t hidden, const Mamba2& mixer,
                  std::vector<ModelTensor>* tensors) {
  const int64_t rows = int64_t{mixer.inner()} + mixer.channels() + mixer.heads;
  const auto add = [&](const char* name, std::vector<int64_t> shape, TensorRole role) {
    tensors->push_back({block + name, std::move(shape), role});
  };
  std::vector<int64_t> convolution = {mixer.channels(), 1, mixer.width};
  if (mixer.converted) convolution = {mixer.channels(), mixer.width};
  add("ssm_in.weight", {rows, hidden}, TensorRole::kLinear);
  if (mixer.projection_bias) add("ssm_in.bias", {rows}, TensorRole::kVector);
  add("ssm_conv1d.weight", std::move(convolution), TensorRole::kVector);
  if (mixer.convolution_bias) add("ssm_conv1d.bias", {mixer.channels()}, TensorRole::kVector);
  for (const char* name : {"ssm_a", "ssm_d", "ssm_dt.bias"}) {
    add(name, {mixer.heads}, TensorRole::kVector);
  }
  add("ssm_norm.weight", {mixer.inner()}, TensorRole::kVector);
  add("ssm_out.weight", {hidden, mixer.inner()}, TensorRole::kLinear);
  if (mixer.projection_bias) add("ssm_out.bias", {hidden}, TensorRole::kVector);
}

void AddAttention(const std::string& /*block*/, int64_t /*hidden*/, const Absent& /*mixer*/,
                  std::vector<ModelTensor>* /*tensors*/) {}

void AddFeedForward(const std::string& block, int64_t hidden, const GatedFeedForward& ffn,
                    std::vector<ModelTensor>* tensors) {
  const int64_t size = ffn.size;
  const bool has_gate = HasGate(ffn.function) && !ffn.fused_gate_up;
  const auto linear = [&](const char* name, int64_t out, int64_t in) {
    tensors->push_back({StrCat(block, name, ".weight"), {out, in}, TensorRole::kLinear});
  };
  if (has_gate) linear("ffn_gate", size, hidden);
  linear("ffn_up", ffn.fused_gate_up ? 2 * size : size, hidden);
  linear("ffn_down", hidden, size);
  if (!ffn.biases) return;
  const auto bias = [&](const char* name, int64_t rows) {
    tensors->push_back({StrCat(block, name, ".bias"), {rows}, TensorRole::kVector});
  };
  if (has_gate) bias("ffn_gate", size);
  bias("ffn_up", ffn.fused_gate_up ? 2 * size : size);
  bias("ffn_down", hidden);
}

void AddFeedForward(const std::string& block, int64_t hidden, const ExpertsFeedForward& ffn,
                    std::vector<ModelTensor>* tensors) {
  const RouterConfig& router = ffn.router;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, TensorRole role) {
    tensors->push_back({block + name, std::move(shape), role});
  };
  add("ffn_gate_inp.weight", {router.experts, hidden}, TensorRole::kRouter);
  if (router.bias) add("ffn_gate_inp.bias", {router.experts}, TensorRole::kVector);
  if (router.correction) add("exp_probs_b.bias", {router.experts}, TensorRole::kVector);
  const auto expert = [&](const char* name, int number, int64_t out, int64_t in) {
    add(StrCat(name, ".", number, ".weight"), {out, in}, TensorRole::kExpert);
    if (ffn.biases) add(StrCat(name, ".", number, ".bias"), {out}, TensorRole::kVector);
  };
  const bool has_gate = HasGate(ffn.function);
  for (int i = 0; i < router.experts; ++i) {
    if (has_gate) expert("ffn_gate", i, ffn.size, hidden);
    expert("ffn_up", i, ffn.size, hidden);
    expert("ffn_down", i, hidden, ffn.size);
  }
  if (ffn.shared_size == 0) return;
  if (has_gate) add("ffn_gate_shexp.weight", {ffn.shared_size, hidden}, TensorRole::kLinear);
  add("ffn_up_shexp.weight", {ffn.shared_size, hidden}, TensorRole::kLinear);
  add("ffn_down_shexp.weight", {hidden, ffn.shared_size}, TensorRole::kLinear);
  if (ffn.shared_gate) add("ffn_gate_inp_shexp.weight", {1, hidden}, TensorRole::kRouter);
}

}  // namespace

std::vector<ModelTensor> DecoderTensors(const ModelConfig& config) {
  const int64_t hidden = config.hidden_size;
  std::vector<ModelTensor> tensors = {
      {"token_embd.weight", {config.vocab_size, hidden}, TensorRole::kTable}};
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const LayerConfig& layer = config.layers[i];
    const std::string block = StrCat("blk.", i, ".");
    const auto norm = [&](bool present, const char* name) {
      if (present) tensors.push_back({block + name, {hidden}, TensorRole::kVector});
    };
    norm(NormsInput(layer.norms), "attn_norm.weight");
    std::visit([&](const auto& mixer) { AddAttention(block, hidden, mixer, &tensors); },
               layer.attention);
    norm(layer.has_mixer() && NormsOutput(layer.norms), "post_attention_norm.weight");
    if (!layer.has_feed_forward()) continue;
    norm(layer.has_mixer() && NormsInput(layer.norms), "ffn_norm.weight");
    if (const auto* experts = std::get_if<ExpertsFeedForward>(&layer.feed_forward)) {
      AddFeedForward(block, hidden, *experts, &tensors);
    } else {
      AddFeedForward(block, hidden, std::get<GatedFeedForward>(layer.feed_forward), &tensors);
    }
    norm(NormsOutput(layer.norms), "post_ffw_norm.weight");
  }
  tensors.push_back({"output_norm.weight", {hidden}, TensorRole::kVector});
  if (!config.tied_embeddings) {
    tensors.push_back({"output.weight", {config.vocab_size, hidden}, TensorRole::kTable});
  }
  return tensors;
}

}  // namespace millrace
