// Qwen2 and Qwen2.5 (arXiv:2407.10671): Llama with biases of q, k and v.
#include "base/status.h"
#include "formats/families/decoder.h"
#include "formats/families/families.h"
#include "formats/families/qwen.h"

namespace millrace {

absl::Status SetQwenWindows(const HfReader& config, ModelConfig* model) {
  MILLRACE_ASSIGN_OR_RETURN(const bool use, config.fields().BoolOr("use_sliding_window", false));
  if (!use)
    return config.SetWindows(
        0, [](int) { return false; }, model);
  MILLRACE_ASSIGN_OR_RETURN(const int window, config.Window(4096));
  int64_t first = 28;
  if (config.fields().Find("max_window_layers") != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(first, config.fields().Int("max_window_layers", 0, kMaxLayers));
  }
  return config.SetWindows(
      window, [first](int layer) { return layer >= first; }, model);
}

namespace {

void AddBiases(ModelConfig* model) {
  model->optional_biases = false;
  for (LayerConfig& layer : model->layers) layer.softmax().qkv_bias = true;
}

absl::StatusOr<ModelConfig> ReadHf(const HfReader& config) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, config.Decoder({.kv_heads = 32, .context = 32768}));
  AddBiases(&model);
  MILLRACE_RETURN_IF_ERROR(config.RefuseOtherFunctions());
  MILLRACE_RETURN_IF_ERROR(SetQwenWindows(config, &model));
  return model;
}

absl::StatusOr<ModelConfig> ReadGguf(const GgufReader& file) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, file.Decoder());
  AddBiases(&model);
  MILLRACE_RETURN_IF_ERROR(file.RefuseWindows());
  return model;
}

constexpr HfArchitecture kArchitectures[] = {{"Qwen2ForCausalLM", ReadHf}};

constexpr std::string_view kTwins = R"([
{"name": "qwen2", "changes": {"tie_word_embeddings": true}, "mutations": []},
{"name": "qwen2_window", "in_gguf": false,
 "changes": {"sliding_window": 9, "use_sliding_window": true, "max_window_layers": 2,
   "tie_word_embeddings": true},
 "mutations": [
  {"sliding_window": 10}, {"max_window_layers": 1}, {"use_sliding_window": false}]}
])";

}  // namespace

constexpr Family kQwen2 = {.name = "qwen2",
                           .hf = kArchitectures,
                           .read_gguf = ReadGguf,
                           .tensors = DecoderTensors,
                           .spellings = kPreNormSpellings,
                           .shared_spellings = kDecoderSpellings,
                           .twins = kTwins};

}  // namespace millrace
