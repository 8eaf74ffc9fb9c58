// OLMo 2 (arXiv:2501.00656): layers read the residual as it is and norm what their blocks add; q
// and k are normed over all their heads together.
#include "base/status.h"
#include "formats/families/decoder.h"
#include "formats/families/families.h"

namespace millrace {
namespace {

void PlaceNorms(ModelConfig* model) {
  for (LayerConfig& layer : model->layers) {
    layer.softmax().qk_norm = QkNorm::kWhole;
    layer.norms = NormPlacement::kOutput;
  }
}

absl::StatusOr<ModelConfig> ReadHf(const HfReader& config) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, config.Decoder({.epsilon = 1e-5}));
  PlaceNorms(&model);
  MILLRACE_RETURN_IF_ERROR(config.RefuseOtherFunctions());
  MILLRACE_RETURN_IF_ERROR(config.ReadAttentionBias(&model));
  return model;
}

absl::StatusOr<ModelConfig> ReadGguf(const GgufReader& file) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, file.Decoder());
  PlaceNorms(&model);
  MILLRACE_RETURN_IF_ERROR(file.RefuseWindows());  // OLMo 3's
  return model;
}

constexpr HfArchitecture kArchitectures[] = {{"Olmo2ForCausalLM", ReadHf}};

constexpr std::string_view kTwins = R"([
{"name": "olmo2", "changes": {"head_dim": null}, "mutations": []},
{"name": "olmo2_biases",
 "changes": {"head_dim": null, "num_hidden_layers": 2, "attention_bias": true}, "mutations": []}
])";

}  // namespace

constexpr Family kOlmo2 = {.name = "olmo2",
                           .hf = kArchitectures,
                           .read_gguf = ReadGguf,
                           .tensors = DecoderTensors,
                           .spellings = kOutputNormSpellings,
                           .shared_spellings = kDecoderSpellings,
                           .twins = kTwins};

}  // namespace millrace
