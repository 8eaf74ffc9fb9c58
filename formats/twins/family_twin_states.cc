#include "formats/twins/family_twin_states.h"

#include <cmath>
#include <cstdlib>
#include <string>
#include <string_view>
#include <variant>

#include "base/strings.h"
#include "formats/twins/family_twin_tensors.h"

namespace millrace {
namespace {

// Returns the mixer of this kind that a twin's layers share, or null.
template <typename Kind>
const Kind* MixerOf(const ModelConfig& model) {
  for (const LayerConfig& layer : model.layers) {
    if (const auto* const mixer = std::get_if<Kind>(&layer.attention)) return mixer;
  }
  return nullptr;
}

void AddDelta(const FamilyTwin& twin, const ModelConfig& model, GgufWriter* writer) {
  const GatedDelta* const delta = DeltaOf(model);
  if (delta == nullptr) return;
  const auto key = [&](std::string_view name) { return StrCat(model.architecture, ".", name); };
  writer->Uint32(key("ssm.conv_kernel"), kConvolutionWidth)
      .Uint32(key("ssm.state_size"), delta->key_size)
      .Uint32(key("ssm.group_count"), delta->key_heads)
      .Uint32(key("ssm.time_step_rank"), delta->value_heads)
      .Uint32(key("ssm.inner_size"), delta->value_heads * delta->value_size)
      .Uint32(key("full_attention_interval"),
              twin.config["full_attention_interval"].get<uint32_t>());
  if (delta->fused_beta_alpha) return;  // Qwen3-Next, which sees no images
  writer->Int32s(key("rope.dimension_sections"), {11, 11, 10, 0});
}

void AddMamba2(const ModelConfig& model, GgufWriter* writer) {
  const auto* const mixer = MixerOf<Mamba2>(model);
  if (mixer == nullptr) return;
  const auto key = [&](std::string_view name) { return StrCat(model.architecture, ".", name); };
  writer->Uint32(key("ssm.conv_kernel"), mixer->width)
      .Uint32(key("ssm.state_size"), mixer->state_size)
      .Uint32(key("ssm.group_count"), mixer->groups)
      .Uint32(key("ssm.time_step_rank"), mixer->heads)
      .Uint32(key("ssm.inner_size"), mixer->inner())
      .Bool(key("rope.scaling.finetuned"), AttentionOf(model).rope.has_value());
}

}  // namespace

const SoftmaxAttention& AttentionOf(const ModelConfig& model) {
  const auto* const attention = MixerOf<SoftmaxAttention>(model);
  if (attention == nullptr) std::abort();
  return *attention;
}

const GatedDelta* DeltaOf(const ModelConfig& model) { return MixerOf<GatedDelta>(model); }

// Where some layers have no attention, and the families do not say which by an interval, there is
// a number of heads for each layer.
void AddStates(const FamilyTwin& twin, const ModelConfig& model, GgufWriter* writer) {
  const auto key = [&](std::string_view name) { return StrCat(model.architecture, ".", name); };
  AddDelta(twin, model, writer);
  AddMamba2(model, writer);
  const auto* const convolution = MixerOf<ShortConvolution>(model);
  if (convolution != nullptr) writer->Uint32(key("shortconv.l_cache"), convolution->width);
  if (convolution == nullptr && MixerOf<Mamba2>(model) == nullptr) {
    writer->Uint32(key("attention.head_count_kv"), AttentionOf(model).kv_heads);
    return;
  }
  std::vector<int32_t> heads;
  for (const LayerConfig& layer : model.layers) {
    const SoftmaxAttention* const softmax = layer.FindSoftmax();
    heads.push_back(softmax == nullptr ? 0 : softmax->kv_heads);
  }
  writer->Int32s(key("attention.head_count_kv"), heads);
}

void ConvertState(const ModelConfig& model, const TensorInfo& tensor, std::vector<int64_t>* shape,
                  std::vector<float>* values) {
  const auto is = [&](std::string_view name) { return tensor.name.ends_with(name); };
  if (const GatedDelta* const delta = DeltaOf(model)) {
    return ConvertDelta(*delta, tensor, shape, values);
  }
  if (is(".ssm_conv1d.weight") || is(".shortconv.conv.weight")) shape->erase(shape->begin() + 1);
  if (is(".ssm_a")) {
    for (float& value : *values) value = -std::exp(value);
  }
  const auto* const mixer = MixerOf<Mamba2>(model);
  if (mixer == nullptr) return;
  if (is(".ssm_a") || is(".ssm_d")) shape->push_back(1);
  if (is(".ssm_norm.weight")) *shape = {mixer->groups, mixer->inner() / mixer->groups};
}

}  // namespace millrace
