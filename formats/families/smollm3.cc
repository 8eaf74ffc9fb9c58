// SmolLM3 (github.com/huggingface/smollm): Llama with layers that have no positions.
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "formats/families/decoder.h"
#include "formats/families/families.h"

namespace millrace {
namespace {

constexpr int kInterval = 4;  // of layers without positions

// no_rope_layers has 0 where a layer has no positions.
absl::Status ReadPositions(const HfReader& config, ModelConfig* model) {
  constexpr char kName[] = "no_rope_layers";
  if (config.fields().Find(kName) == nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(const int interval,
                              config.IntOr("no_rope_layer_interval", kMaxLayers, kInterval));
    for (int i = 0; i < model->num_layers(); ++i) {
      if ((i + 1) % interval == 0) model->layers[i].softmax().rope.reset();
    }
    return absl::OkStatus();
  }
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> rotated, config.fields().Ints(kName, 0, 1));
  if (rotated.size() < model->layers.size()) {
    return config.fields().Bad(kName, StrCat("has ", rotated.size(), " items, must have ",
                                             model->num_layers(), ", one a layer"));
  }
  for (size_t i = 0; i < model->layers.size(); ++i) {
    if (rotated[i] == 0) model->layers[i].softmax().rope.reset();
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> ReadHf(const HfReader& config) {
  const HfDefaults defaults{.kv_heads = 4, .context = 32768, .tied = true, .rope = {.theta = 2e6}};
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, config.Decoder(defaults));
  MILLRACE_RETURN_IF_ERROR(config.RefuseOtherFunctions());
  MILLRACE_RETURN_IF_ERROR(config.ReadAttentionBias(&model));
  MILLRACE_RETURN_IF_ERROR(config.ReadFeedForwardBias(&model));
  MILLRACE_RETURN_IF_ERROR(ReadPositions(config, &model));
  MILLRACE_ASSIGN_OR_RETURN(const bool use, config.fields().BoolOr("use_sliding_window", false));
  int window = 0;
  if (use) {
    MILLRACE_ASSIGN_OR_RETURN(window, config.Window(0));
  }
  const auto has_window = [&](int layer) {
    return !model.layers[layer].softmax().rope.has_value();
  };
  MILLRACE_RETURN_IF_ERROR(config.SetWindows(window, has_window, &model));
  return model;
}

absl::StatusOr<ModelConfig> ReadGguf(const GgufReader& file) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, file.Decoder());
  for (int i = kInterval - 1; i < model.num_layers(); i += kInterval) {
    model.layers[i].softmax().rope.reset();
  }
  MILLRACE_RETURN_IF_ERROR(file.RefuseWindows());
  return model;
}

constexpr HfArchitecture kArchitectures[] = {{"SmolLM3ForCausalLM", ReadHf}};

constexpr std::string_view kTwins = R"([
{"name": "smollm3",
 "changes": {"head_dim": null, "num_hidden_layers": 5, "tie_word_embeddings": true},
 "mutations": [{"no_rope_layers": [1, 1, 1, 1, 1]}, {"no_rope_layer_interval": 3}]},
{"name": "smollm3_biases",
 "changes": {"head_dim": null, "num_hidden_layers": 4, "tie_word_embeddings": true,
   "attention_bias": true, "mlp_bias": true}, "mutations": []}
])";

}  // namespace

constexpr Family kSmolLm3 = {.name = "smollm3",
                             .hf = kArchitectures,
                             .read_gguf = ReadGguf,
                             .interleaved_in_gguf = true,
                             .tensors = DecoderTensors,
                             .spellings = kPreNormSpellings,
                             .shared_spellings = kDecoderSpellings,
                             .twins = kTwins};

}  // namespace millrace
