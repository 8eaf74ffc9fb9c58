#include "formats/model_config.h"

#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "formats/families/families.h"
#include "formats/families/gguf_reader.h"
#include "formats/model_tensors.h"

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

absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file) {
  constexpr char kArchitecture[] = "general.architecture";
  constexpr char kName[] = "general.name";
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view architecture, file.String(kArchitecture));
  const Family* const family = FindFamily(architecture);
  if (family == nullptr) {
    std::vector<std::string_view> supported;
    for (const Family* known : Families()) supported.push_back(known->name);
    return absl::UnimplementedError(
        StrCat(file.base_name(), ": key ", kArchitecture, ": \"", Printable(architecture),
               "\" is not supported (supported: ", JoinList(supported), ")"));
  }
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig config, family->read_gguf(GgufReader(file, *family)));
  config.architecture = family->name;
  if (file.Find(kName) != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(config.name, file.String(kName));
  }
  MILLRACE_RETURN_IF_ERROR(ValidateTensors(config, *family, file));
  return config;
}

}  // namespace millrace
