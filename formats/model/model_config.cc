#include "formats/model/model_config.h"

#include <variant>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {

namespace {

// Returns what a layer has that devices without recurrent ops lack, or null.
const char* RecurrentPartOf(const LayerConfig& layer) {
  if (std::holds_alternative<GatedDelta>(layer.attention)) {
    return "a gated delta rule (linear_attention)";
  }
  if (std::holds_alternative<ShortConvolution>(layer.attention)) {
    return "a short convolution (conv)";
  }
  if (std::holds_alternative<Mamba2>(layer.attention)) return "a Mamba-2 mixer (mamba)";
  return layer.softmax().output_gate ? "a gate of its output" : nullptr;
}

}  // namespace

absl::Status RefuseRecurrentLayers(const ModelConfig& config) {
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const char* const part = RecurrentPartOf(config.layers[i]);
    if (part == nullptr) continue;
    return absl::UnimplementedError(
        StrCat("layer_types: layer ", i, " of ", config.architecture, " has ", part,
               ", which this device does not compute; allowed: attention without a gate (the model "
               "runs with --device cpu or torch)"));
  }
  return absl::OkStatus();
}

absl::StatusOr<HeadShape> SharedHeadShape(const ModelConfig& config) {
  MILLRACE_RETURN_IF_ERROR(RefuseRecurrentLayers(config));
  const auto shape = [&](size_t layer) {
    const SoftmaxAttention& attention = config.layers[layer].softmax();
    return HeadShape{attention.heads, attention.kv_heads, attention.head_size};
  };
  const HeadShape first = shape(0);
  for (size_t i = 1; i < config.layers.size(); ++i) {
    if (const HeadShape other = shape(i); other != first) {
      return absl::UnimplementedError(
          StrCat("layer ", i, " has ", other.heads, " heads and ", other.kv_heads, " kv heads of ",
                 other.head_size, " elements, layer 0 has ", first.heads, " and ", first.kv_heads,
                 " of ", first.head_size, "; supported: the same in all layers"));
    }
  }
  return first;
}

}  // namespace millrace
