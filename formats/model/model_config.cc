#include "formats/model/model_config.h"

#include <cstddef>
#include <optional>

#include "base/strings.h"

namespace millrace {

absl::StatusOr<HeadShape> SharedHeadShape(const ModelConfig& config) {
  HeadShape first;
  std::optional<size_t> of_layer;  // the first that attends
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const SoftmaxAttention* const attention = config.layers[i].FindSoftmax();
    if (attention == nullptr) continue;
    const HeadShape shape{attention->heads, attention->kv_heads, attention->head_size};
    if (!of_layer.has_value()) {
      first = shape;
      of_layer = i;
    } else if (shape != first) {
      return absl::UnimplementedError(
          StrCat("layer ", i, " has ", shape.heads, " heads and ", shape.kv_heads, " kv heads of ",
                 shape.head_size, " elements, layer ", *of_layer, " has ", first.heads, " and ",
                 first.kv_heads, " of ", first.head_size, "; supported: the same in all layers"));
    }
  }
  return first;
}

}  // namespace millrace
