// Qwen3 (arXiv:2505.09388): Llama with norms of q and k, of each head.
#include "base/status.h"
#include "formats/families/decoder.h"
#include "formats/families/families.h"
#include "formats/families/qwen.h"

namespace millrace {
namespace {

void AddHeadNorms(ModelConfig* model) {
  for (LayerConfig& layer : model->layers) layer.softmax().qk_norm = QkNorm::kHead;
}

absl::StatusOr<ModelConfig> ReadHf(const HfReader& config) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model,
                            config.Decoder({.head_size = 128, .kv_heads = 32, .context = 32768}));
  AddHeadNorms(&model);
  MILLRACE_RETURN_IF_ERROR(config.RefuseOtherFunctions());
  MILLRACE_RETURN_IF_ERROR(config.ReadAttentionBias(&model));
  MILLRACE_RETURN_IF_ERROR(SetQwenWindows(config, &model));
  return model;
}

absl::StatusOr<ModelConfig> ReadGguf(const GgufReader& file) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, file.Decoder());
  AddHeadNorms(&model);
  MILLRACE_RETURN_IF_ERROR(file.RefuseWindows());
  return model;
}

constexpr HfArchitecture kArchitectures[] = {{"Qwen3ForCausalLM", ReadHf}};

constexpr std::string_view kTwins = R"([
{"name": "qwen3", "changes": {"tie_word_embeddings": true}, "mutations": []},
{"name": "qwen3_window", "in_gguf": false,
 "changes": {"sliding_window": 9, "use_sliding_window": true, "max_window_layers": 2,
   "tie_word_embeddings": true},
 "mutations": [
  {"sliding_window": 10}, {"max_window_layers": 1}, {"use_sliding_window": false}]},
{"name": "qwen3_last", "pooling": "lasttoken", "normalize": true,
 "changes": {"tie_word_embeddings": true}, "mutations": []},
{"name": "qwen3_mean", "pooling": "mean_tokens", "bare_names": true,
 "changes": {"architectures": ["Qwen3Model"]}, "mutations": []},
{"name": "qwen3_biases",
 "changes": {"num_hidden_layers": 2, "attention_bias": true}, "mutations": []}
])";

}  // namespace

constexpr Family kQwen3 = {.name = "qwen3",
                           .hf = kArchitectures,
                           .read_gguf = ReadGguf,
                           .tensors = DecoderTensors,
                           .spellings = kPreNormSpellings,
                           .shared_spellings = kDecoderSpellings,
                           .twins = kTwins};

}  // namespace millrace
