#include "formats/model/model_config.h"

#include "base/status.h"
#include "base/strings.h"

namespace millrace {

absl::Status RefuseRecurrentLayers(const ModelConfig& config) {
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const SoftmaxAttention* const softmax = config.layers[i].FindSoftmax();
    if (softmax != nullptr && !softmax->output_gate) continue;
    return absl::UnimplementedError(StrCat(
        "layer_types: layer ", i, " of ", config.architecture, " has ",
        softmax == nullptr ? "a gated delta rule (linear_attention)" : "a gate of its output",
        ", which this device does not compute; allowed: attention without a gate (the model runs "
        "with --device cpu or torch)"));
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
