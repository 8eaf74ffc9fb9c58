#include "formats/model/model_config.h"

#include <variant>

#include "base/strings.h"

namespace millrace {

absl::StatusOr<HeadShape> SharedHeadShape(const ModelConfig& config) {
  const auto shape = [&](size_t layer) {
    return std::visit(
        [](const SoftmaxAttention& attention) {
          return HeadShape{attention.heads, attention.kv_heads, attention.head_size};
        },
        config.layers[layer].attention);
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
