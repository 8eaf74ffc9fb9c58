#include "executors/torch/torch_kv.h"

#include <c10/core/InferenceMode.h>

#include <variant>

#include "base/status.h"
#include "base/strings.h"
#include "executors/models/model_state.h"

namespace millrace::aten {

void TorchKv::Move(absl::Span<const StateMove> moves) const {
  const c10::InferenceMode inference;
  const auto copy = [](const at::Tensor& of, const StateMove& move, int64_t size) {
    if (!of.defined()) return;
    of.narrow(0, move.to.block * size, size).copy_(of.narrow(0, move.from.block * size, size));
  };
  for (const StateMove& move : moves) {
    for (size_t layer = 0; layer < groups.size(); ++layer) {
      if (groups[layer] != move.group) continue;
      copy(inputs[layer], move, 1);
      copy(states[layer], move, 1);
      copy(keys[layer], move, block_size);
      copy(values[layer], move, block_size);
    }
  }
}

void TorchKv::AddLayer(const LayerConfig& layer, int64_t places, int64_t slots,
                       at::ScalarType dtype) {
  for (std::vector<at::Tensor>* const tensors : {&keys, &values, &inputs, &states}) {
    tensors->emplace_back();
  }
  if (const SoftmaxAttention* const heads = layer.FindSoftmax()) {
    keys.back() = at::empty({places, heads->kv_heads, heads->head_size}, dtype);
    values.back() = at::empty({places, heads->kv_heads, heads->head_size}, dtype);
  } else if (const auto* const convolution = std::get_if<ShortConvolution>(&layer.attention)) {
    inputs.back() = at::empty({slots, convolution->width - 1, convolution->channels});
  } else if (const auto* const mixer = std::get_if<Mamba2>(&layer.attention)) {
    inputs.back() = at::empty({slots, mixer->width - 1, mixer->channels()});
    states.back() = at::empty({slots, mixer->heads, mixer->state_size, mixer->head_size});
  } else if (const auto* const delta = std::get_if<GatedDelta>(&layer.attention)) {
    inputs.back() = at::empty({slots, kConvolutionWidth - 1, delta->channels()});
    states.back() = at::empty({slots, delta->value_heads, delta->key_size, delta->value_size});
  }
}

absl::StatusOr<TorchKv> MakeKv(const ModelConfig& config, const TorchSpec& device,
                               at::ScalarType dtype, int64_t more_places, StepLimits* limits) {
  const ModelState state = StateOf(config, RankSpec(),
                                   {.block_size = device.block_size,
                                    .element_bytes = static_cast<int32_t>(c10::elementSize(dtype)),
                                    .release_below = limits->max_model_len});
  limits->state = state.layout;
  limits->num_blocks = DivideState(limits->state, device.kv_cache_memory,
                                   {.max_num_seqs = limits->max_num_seqs,
                                    .max_num_batched_tokens = limits->max_num_batched_tokens,
                                    .max_model_len = limits->max_model_len,
                                    .checkpoint_bytes = device.state_cache_memory});
  if (limits->context_blocks() < 1) {
    return TooLittleStateMemory(limits->state, device.kv_cache_memory, limits->max_num_seqs);
  }
  TorchKv kv{.block_size = device.block_size, .num_groups = state.layout.num_groups()};
  for (size_t layer = 0; layer < config.layers.size(); ++layer) {
    const int group = state.placements[layer].group;
    kv.groups.push_back(group);
    const bool has_state = group != kNoGroup;
    const int64_t places = has_state ? limits->num_blocks[group] * kv.block_size + more_places : 0;
    kv.AddLayer(config.layers[layer], places, has_state ? limits->num_places(group) : 0, dtype);
  }
  return kv;
}

}  // namespace millrace::aten
